# Defines smp::torch, LibTorch's CPU libraries, and SMP_TORCH_VERSION. Also used by the installed package.
#
# Not find_package(Torch): that one plants a dummy protobuf::libprotobuf and puts LibTorch's own copies of
# the protobuf and fmt headers in front of the system's. Here they come last (-idirafter).
#
# Searched in this order: SMP_TORCH_DIR, CMAKE_PREFIX_PATH, the torch wheel of python3, the wheel that ./smp
# put into the user's cache folder, the system.

set(SMP_TORCH_MINIMUM 2.7)

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

# Sets `result` to the version that the headers under `include` state, or to 0.
function(smp_torch_version include result)
  set(numbers 0)
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS ${include}/${header})
      file(STRINGS ${include}/${header} lines REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
      list(TRANSFORM lines REPLACE ".* ([0-9]+)$" "\\1" OUTPUT_VARIABLE numbers)
      if(numbers)
        break()
      endif()
    endif()
  endforeach()
  list(JOIN numbers . version)
  set(${result} ${version} PARENT_SCOPE)
endfunction()

# Sets `result` to the folder of the torch wheel that ./smp installed, or to nothing.
function(smp_torch_of_cache result)
  set(cache $ENV{XDG_CACHE_HOME})
  if(NOT cache)
    set(cache $ENV{HOME}/.cache)
  endif()
  file(GLOB folders ${cache}/smp/venv-torch-*/lib/python3*/site-packages/torch)
  set(${result} "${folders}" PARENT_SCOPE)
endfunction()

function(smp_find_torch)
  set(roots ${SMP_TORCH_DIR} $ENV{SMP_TORCH_DIR} ${CMAKE_PREFIX_PATH})
  if(NOT roots)
    smp_torch_of_python(roots)
  endif()
  if(NOT roots)
    smp_torch_of_cache(roots)
  endif()
  find_library(SMP_TORCH_LIBRARY torch_cpu HINTS ${roots} PATH_SUFFIXES lib torch/lib)
  find_library(SMP_C10_LIBRARY c10 HINTS ${roots} PATH_SUFFIXES lib torch/lib)
  find_path(SMP_TORCH_INCLUDE torch/csrc/api/include/torch/torch.h
            HINTS ${roots} PATH_SUFFIXES include torch/include)
  mark_as_advanced(SMP_TORCH_LIBRARY SMP_C10_LIBRARY SMP_TORCH_INCLUDE)
  if(NOT SMP_TORCH_LIBRARY OR NOT SMP_C10_LIBRARY OR NOT SMP_TORCH_INCLUDE)
    message(FATAL_ERROR
      "LibTorch was not found. Either let ./smp install it (./smp build), or install a wheel "
      "(pip install torch), or unpack LibTorch and configure with -DSMP_TORCH_DIR=/path/to/libtorch.")
  endif()
  smp_torch_version(${SMP_TORCH_INCLUDE} version)
  if(version VERSION_LESS SMP_TORCH_MINIMUM)
    message(FATAL_ERROR
      "LibTorch ${version} in ${SMP_TORCH_INCLUDE} is too old: ${SMP_TORCH_MINIMUM} or newer is needed. "
      "Name another one with -DSMP_TORCH_DIR=/path/to/libtorch.")
  endif()
  set(SMP_TORCH_VERSION ${version} PARENT_SCOPE)
endfunction()

function(smp_add_torch_target)
  foreach(library torch_cpu c10)
    add_library(smp::${library} SHARED IMPORTED GLOBAL)
  endforeach()
  set_target_properties(smp::torch_cpu PROPERTIES IMPORTED_LOCATION ${SMP_TORCH_LIBRARY})
  set_target_properties(smp::c10 PROPERTIES IMPORTED_LOCATION ${SMP_C10_LIBRARY})
  add_library(smp::torch INTERFACE IMPORTED GLOBAL)
  target_compile_features(smp::torch INTERFACE cxx_std_20)
  foreach(folder ${SMP_TORCH_INCLUDE} ${SMP_TORCH_INCLUDE}/torch/csrc/api/include)
    if(NOT folder STREQUAL "/usr/include")
      target_compile_options(smp::torch INTERFACE "SHELL:-idirafter ${folder}")
    endif()
  endforeach()
  # LibTorch registers its operators in static constructors: the linker must not drop the libraries.
  target_link_options(smp::torch INTERFACE -Wl,--no-as-needed)
  target_link_libraries(smp::torch INTERFACE smp::torch_cpu smp::c10)
endfunction()

smp_find_torch()
if(NOT TARGET smp::torch)
  smp_add_torch_target()
endif()
