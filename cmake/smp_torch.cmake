# Finds LibTorch and defines smp::torch, its CPU libraries. Also used by the installed package;
# `cmake -P smp_torch.cmake` prints the folder that would be used, or nothing.
#
# Not find_package(Torch): that one plants a dummy protobuf::libprotobuf and puts LibTorch's own copies of
# the protobuf and fmt headers in front of the system's. Here they come last (-idirafter).
#
# Searched in this order: SMP_TORCH_DIR, CMAKE_PREFIX_PATH, the torch wheel of python3, the system, and
# the wheel that ./smp put into the user's cache folder.

set(SMP_TORCH_MINIMUM 2.7)

# Sets `result` to the version of the LibTorch in `root`, or to 0.
function(smp_torch_version root result)
  set(numbers 0)
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS ${root}/include/${header})
      file(STRINGS ${root}/include/${header} lines
           REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
      list(TRANSFORM lines REPLACE ".* ([0-9]+)$" "\\1" OUTPUT_VARIABLE numbers)
      if(numbers)
        break()
      endif()
    endif()
  endforeach()
  list(JOIN numbers . version)
  set(${result} ${version} PARENT_SCOPE)
endfunction()

# Sets `result` to the folder with libtorch_cpu.so in `root`, or to nothing.
function(smp_torch_libraries root result)
  file(GLOB found ${root}/lib/libtorch_cpu.so ${root}/lib/*-linux-gnu/libtorch_cpu.so)
  if(found)
    list(GET found 0 found)
    cmake_path(GET found PARENT_PATH found)
  endif()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# Sets `result` to the folder of the torch wheel that python3 imports, or to nothing.
function(smp_torch_of_python result)
  execute_process(
    COMMAND python3 -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(failed)
    set(folder "")
  endif()
  set(${result} "${folder}" PARENT_SCOPE)
endfunction()

# Sets `result` to the torch wheels that ./smp installed.
function(smp_torch_of_cache result)
  set(cache $ENV{XDG_CACHE_HOME})
  if(NOT cache)
    set(cache $ENV{HOME}/.cache)
  endif()
  file(GLOB folders ${cache}/smp/venv-torch-*/lib/python3*/site-packages/torch)
  set(${result} "${folders}" PARENT_SCOPE)
endfunction()

# Sets `result` to the first LibTorch that is new enough, or to nothing.
function(smp_find_torch result)
  smp_torch_of_python(of_python)
  smp_torch_of_cache(of_cache)
  string(REPLACE ":" ";" prefixes "$ENV{CMAKE_PREFIX_PATH}")
  foreach(root ${SMP_TORCH_DIR} $ENV{SMP_TORCH_DIR} ${CMAKE_PREFIX_PATH} ${prefixes}
               ${of_python} /usr/local /usr ${of_cache})
    smp_torch_version(${root} version)
    smp_torch_libraries(${root} libraries)
    if(libraries AND version VERSION_GREATER_EQUAL SMP_TORCH_MINIMUM)
      set(${result} ${root} PARENT_SCOPE)
      return()
    elseif(SMP_TORCH_DIR STREQUAL root OR "$ENV{SMP_TORCH_DIR}" STREQUAL root)
      message(FATAL_ERROR "SMP_TORCH_DIR names ${root}, which holds no LibTorch of version "
        "${SMP_TORCH_MINIMUM} or newer. Name a folder with include/torch and lib/libtorch_cpu.so.")
    endif()
  endforeach()
  set(${result} "" PARENT_SCOPE)
endfunction()

function(smp_add_torch_target root)
  smp_torch_libraries(${root} libraries)
  foreach(library torch_cpu c10)
    add_library(smp::${library} SHARED IMPORTED GLOBAL)
    set_target_properties(smp::${library} PROPERTIES
      IMPORTED_LOCATION ${libraries}/lib${library}.so)
  endforeach()
  add_library(smp::torch INTERFACE IMPORTED GLOBAL)
  target_compile_features(smp::torch INTERFACE cxx_std_20)
  foreach(folder ${root}/include ${root}/include/torch/csrc/api/include)
    if(NOT folder STREQUAL "/usr/include")
      target_compile_options(smp::torch INTERFACE "SHELL:-idirafter ${folder}")
    endif()
  endforeach()
  # LibTorch registers its operators in static constructors: the linker must not drop the libraries.
  target_link_options(smp::torch INTERFACE -Wl,--no-as-needed)
  target_link_libraries(smp::torch INTERFACE smp::torch_cpu smp::c10)
endfunction()

smp_find_torch(SMP_TORCH_ROOT)
if(CMAKE_SCRIPT_MODE_FILE)
  execute_process(COMMAND ${CMAKE_COMMAND} -E echo ${SMP_TORCH_ROOT})
elseif(NOT SMP_TORCH_ROOT)
  message(FATAL_ERROR
    "LibTorch ${SMP_TORCH_MINIMUM} or newer was not found. Either let ./smp install it (./smp build), or "
    "install a wheel (pip install torch), or unpack LibTorch and configure with "
    "-DSMP_TORCH_DIR=/path/to/libtorch.")
elseif(NOT TARGET smp::torch)
  smp_torch_version(${SMP_TORCH_ROOT} SMP_TORCH_VERSION)
  message(STATUS "LibTorch ${SMP_TORCH_VERSION} in ${SMP_TORCH_ROOT}")
  smp_add_torch_target(${SMP_TORCH_ROOT})
endif()
