# Functions that turn src/<layer>/ into targets.
#
#   smp_add_layer(d2d USES base LIBRARIES smp_mpi)   one OBJECT target smp_d2d of the sources below src/d2d/;
#                                                    LOOPS are sources that are all loops over numbers
#   smp_add_library()                                the layers as the shared library smp, alias smp::smp,
#                                                    and as the static smp_internal (tests, perf, tool)
#   smp_add_nemo()                                   src/nemo as the static smp_nemo, for the tool only, if yaml-cpp is there
#   smp_add_cli()                                    the tool bin/smp of src/cli/*.cpp, target smp-cli

set(SMP_GENERATED_DIR ${PROJECT_BINARY_DIR}/generated)
configure_file(${PROJECT_SOURCE_DIR}/cmake/version.h.in ${SMP_GENERATED_DIR}/smp/version.h @ONLY)

# Compiles the .proto files of src/<layer>/ to C++; the headers stay in the build folder.
function(smp_generate_protobuf layer result)
  file(GLOB_RECURSE protos RELATIVE ${PROJECT_SOURCE_DIR}/src CONFIGURE_DEPENDS
       ${PROJECT_SOURCE_DIR}/src/${layer}/*.proto)
  foreach(proto IN LISTS protos)
    cmake_path(REPLACE_EXTENSION proto pb OUTPUT_VARIABLE output)
    cmake_path(ABSOLUTE_PATH output BASE_DIRECTORY ${SMP_GENERATED_DIR})
    cmake_path(GET output PARENT_PATH folder)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(
      OUTPUT ${output}.cc ${output}.h
      COMMAND protobuf::protoc --cpp_out=${SMP_GENERATED_DIR} -I${PROJECT_SOURCE_DIR}/src
              ${PROJECT_SOURCE_DIR}/src/${proto}
      DEPENDS ${PROJECT_SOURCE_DIR}/src/${proto}
      COMMENT "Compiling ${proto}")
    set_source_files_properties(${output}.cc PROPERTIES COMPILE_OPTIONS -w SKIP_UNITY_BUILD_INCLUSION ON)
    list(APPEND outputs ${output}.cc ${output}.h)
  endforeach()
  set(${result} ${outputs} PARENT_SCOPE)
endfunction()

function(smp_add_layer layer)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "" "WITHOUT;SEPARATE;LOOPS;USES;LIBRARIES")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${layer}/*.cpp)
  foreach(room IN LISTS ARG_WITHOUT)
    list(FILTER sources EXCLUDE REGEX "/src/${layer}/${room}/")
  endforeach()
  if(NOT sources OR (SMP_LAYERS AND NOT layer IN_LIST SMP_LAYERS))
    return()
  endif()
  smp_generate_protobuf(${layer} generated)
  set(separate "")
  if(ARG_SEPARATE)
    list(JOIN ARG_SEPARATE "|" rooms)
    set(separate ${sources})
    list(FILTER separate INCLUDE REGEX "/src/${layer}/(${rooms})/")
    list(FILTER sources EXCLUDE REGEX "/src/${layer}/(${rooms})/")
  endif()
  foreach(loop IN LISTS ARG_LOOPS)
    set(source ${PROJECT_SOURCE_DIR}/src/${layer}/${loop}.cpp)
    list(REMOVE_ITEM sources ${source})
    list(APPEND separate ${source})
    # Warnings: the intrinsics of GCC 12 (GCC bug 105593).
    set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON
      COMPILE_OPTIONS "-O3;-fno-math-errno;-ffp-contract=off;-Wno-uninitialized;-Wno-maybe-uninitialized")
  endforeach()
  smp_join(sources ${layer} ${sources})
  add_library(smp_${layer} OBJECT ${sources} ${separate} ${generated})
  target_include_directories(smp_${layer} PUBLIC
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src ${SMP_GENERATED_DIR})
  set_target_properties(smp_${layer} PROPERTIES UNITY_BUILD OFF
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  smp_precompile(smp_${layer})
  target_link_libraries(smp_${layer} PUBLIC smp_flags smp::torch ${ARG_LIBRARIES})
  foreach(used IN LISTS ARG_USES)
    if(TARGET smp_${used})
      target_link_libraries(smp_${layer} PUBLIC smp_${used})
    endif()
  endforeach()
  set_property(GLOBAL APPEND PROPERTY SMP_LAYERS smp_${layer})
endfunction()

function(smp_add_library)
  get_property(layers GLOBAL PROPERTY SMP_LAYERS)
  if(NOT layers)
    return()
  endif()
  add_library(smp SHARED)
  add_library(smp::smp ALIAS smp)
  target_link_libraries(smp PRIVATE ${layers} PUBLIC smp::torch)
  set_target_properties(smp PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/smp/*.h)
  target_sources(smp PUBLIC FILE_SET HEADERS
    BASE_DIRS ${PROJECT_SOURCE_DIR}/include ${SMP_GENERATED_DIR}
    FILES ${headers} ${SMP_GENERATED_DIR}/smp/version.h)

  add_library(smp_internal STATIC)
  target_link_libraries(smp_internal PUBLIC ${layers})
endfunction()

function(smp_add_nemo)
  find_package(yaml-cpp 0.7 QUIET)
  if(NOT yaml-cpp_FOUND)
    message(STATUS "No yaml-cpp (Debian: libyaml-cpp-dev): smp config cannot read NeMo's configurations")
    return()
  elseif(NOT TARGET smp_config)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/nemo/*.cpp)
  smp_join(sources nemo ${sources})
  add_library(smp_nemo STATIC ${sources})
  set_target_properties(smp_nemo PROPERTIES UNITY_BUILD OFF)
  target_link_libraries(smp_nemo PUBLIC smp_internal PRIVATE smp_flags yaml-cpp)
  target_compile_definitions(smp_nemo INTERFACE SMP_WITH_NEMO)
endfunction()

function(smp_add_cli)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/cli/*.cpp)
  if(sources AND TARGET smp_api)
    add_executable(smp-cli ${sources})
    target_link_libraries(smp-cli PRIVATE smp_internal)
    if(TARGET smp_nemo)
      target_link_libraries(smp-cli PRIVATE smp_nemo)
    endif()
    smp_precompile(smp-cli)
  endif()
endfunction()
