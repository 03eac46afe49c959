# The other libraries, all Debian packages (./smp installs them). None shows in a public header.

find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED CONFIG COMPONENTS fiber context)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_path(SMP_XXHASH_INCLUDE xxhash.h REQUIRED)
find_package(MPI REQUIRED COMPONENTS C)
find_package(Protobuf 3.21 REQUIRED)
# Loaded at run time; their headers are needed.
find_path(SMP_UCX_INCLUDE ucp/api/ucp.h REQUIRED)
find_path(SMP_OFI_INCLUDE rdma/fabric.h REQUIRED)

# Headers that every layer may use behind its own.
add_library(smp_third_party INTERFACE)
target_compile_definitions(smp_third_party INTERFACE XXH_INLINE_ALL)
target_link_libraries(smp_third_party INTERFACE
  Boost::fiber Boost::context spdlog::spdlog fmt::fmt nlohmann_json::nlohmann_json CLI11::CLI11 Threads::Threads)

# The C interface only: the C++ bindings would need a library of their own.
add_library(smp_mpi INTERFACE)
target_compile_definitions(smp_mpi INTERFACE OMPI_SKIP_MPICXX=1)
target_link_libraries(smp_mpi INTERFACE MPI::MPI_C)

add_library(smp_protobuf INTERFACE)
target_link_libraries(smp_protobuf INTERFACE protobuf::libprotobuf)
