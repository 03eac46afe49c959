# Finds LibTorch and defines smp::torch, its CPU libraries. Also used by the installed package;
# `cmake -P smp_torch.cmake` prints which LibTorch would be used, as lines KEY=VALUE, for ./smp.
#
# Not find_package(Torch): that one plants a dummy protobuf::libprotobuf and puts LibTorch's own copies of
# the protobuf and fmt headers in front of the system's. Here they come last (-idirafter).
#
# Searched in this order: SMP_TORCH_DIR, CMAKE_PREFIX_PATH, the torch wheel of python3, the system, and
# the wheel that ./smp put into the user's cache folder. Paths may hold spaces.

set(SMP_TORCH_MINIMUM 2.7)

# Sets `result` to the version of the LibTorch in `root`, or to 0.
function(smp_torch_version root result)
  set(numbers 0)
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS "${root}/include/${header}")
      file(STRINGS "${root}/include/${header}" lines
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
  file(GLOB found "${root}/lib/libtorch_cpu.so" "${root}/lib/*-linux-gnu/libtorch_cpu.so")
  if(found)
    list(GET found 0 found)
    cmake_path(GET found PARENT_PATH found)
  endif()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# Sets `result` to why the LibTorch in `root` cannot be used, or to nothing: an interrupted download or
# installation leaves part of one.
function(smp_torch_objection root result)
  set(objection "")
  smp_torch_version("${root}" version)
  smp_torch_libraries("${root}" libraries)
  if(NOT libraries AND NOT version)
    set(objection "it holds no LibTorch")
  elseif(NOT libraries)
    set(objection "it is not complete: there is no lib/libtorch_cpu.so")
  elseif(NOT EXISTS "${libraries}/libc10.so")
    set(objection "it is not complete: there is no libc10.so beside libtorch_cpu.so")
  elseif(NOT version OR NOT EXISTS "${root}/include/torch/csrc/api/include/torch/torch.h")
    set(objection "it is not complete: the headers of its C++ interface are missing")
  elseif(version VERSION_LESS SMP_TORCH_MINIMUM)
    set(objection "it is version ${version}, and ${SMP_TORCH_MINIMUM} or newer is needed")
  endif()
  set(${result} "${objection}" PARENT_SCOPE)
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

# Sets `result` to the torch wheels that ./smp installed, the newest first; not to one that is on its way (.part).
function(smp_torch_of_cache result)
  set(cache "$ENV{XDG_CACHE_HOME}")
  if(NOT cache)
    set(cache "$ENV{HOME}/.cache")
  endif()
  file(GLOB folders "${cache}/smp/venv-torch-*/lib/python3*/site-packages/torch")
  list(FILTER folders EXCLUDE REGEX "/venv-torch-[^/]*\\.part/")
  list(SORT folders COMPARE NATURAL ORDER DESCENDING)
  set(${result} "${folders}" PARENT_SCOPE)
endfunction()

# Sets SMP_TORCH_ROOT, _VERSION and _WHY to the first LibTorch that can be used, SMP_TORCH_PASSED_OVER to what
# was not taken and why, and SMP_TORCH_ERROR to what is wrong with SMP_TORCH_DIR; or each to nothing.
function(smp_find_torch)
  set(why_named "named by SMP_TORCH_DIR")
  set(roots_named "${SMP_TORCH_DIR}")
  if(NOT roots_named)
    set(roots_named "$ENV{SMP_TORCH_DIR}")
  endif()
  set(why_prefix "in CMAKE_PREFIX_PATH")
  string(REPLACE ":" ";" roots_prefix "$ENV{CMAKE_PREFIX_PATH}")
  list(PREPEND roots_prefix ${CMAKE_PREFIX_PATH})
  set(why_python "python3's torch wheel")
  smp_torch_of_python(roots_python)
  set(why_system "the system's")
  set(roots_system /usr/local /usr)
  set(why_cache "put there by ./smp")
  smp_torch_of_cache(roots_cache)

  set(found "")
  set(version "")
  set(why "")
  set(passed_over "")
  set(error "")
  foreach(source named prefix python system cache)
    foreach(root IN LISTS roots_${source})
      smp_torch_objection("${root}" objection)
      if(objection AND source STREQUAL named)
        set(error "SMP_TORCH_DIR names ${root}, but ${objection}. Name a folder with include/torch and lib/libtorch_cpu.so.")
        break()
      elseif(NOT objection)
        set(found "${root}")
        set(why "${why_${source}}")
        smp_torch_version("${root}" version)
        break()
      elseif(NOT objection MATCHES "no LibTorch$")
        list(APPEND passed_over "${root}: ${objection}")
      endif()
    endforeach()
    if(found OR error)
      break()
    endif()
  endforeach()
  set(SMP_TORCH_ROOT "${found}" PARENT_SCOPE)
  set(SMP_TORCH_VERSION "${version}" PARENT_SCOPE)
  set(SMP_TORCH_WHY "${why}" PARENT_SCOPE)
  set(SMP_TORCH_PASSED_OVER "${passed_over}" PARENT_SCOPE)
  set(SMP_TORCH_ERROR "${error}" PARENT_SCOPE)
endfunction()

function(smp_add_torch_target root)
  smp_torch_libraries("${root}" libraries)
  foreach(library torch_cpu c10)
    add_library(smp::${library} SHARED IMPORTED GLOBAL)
    set_target_properties(smp::${library} PROPERTIES
      IMPORTED_LOCATION "${libraries}/lib${library}.so")
  endforeach()
  add_library(smp::torch INTERFACE IMPORTED GLOBAL)
  target_compile_features(smp::torch INTERFACE cxx_std_20)
  foreach(folder "${root}/include" "${root}/include/torch/csrc/api/include")
    if(NOT folder STREQUAL "/usr/include")
      target_compile_options(smp::torch INTERFACE "SHELL:-idirafter \"${folder}\"")
    endif()
  endforeach()
  # LibTorch registers its operators in static constructors: the linker must not drop the libraries.
  target_link_options(smp::torch INTERFACE -Wl,--no-as-needed)
  target_link_libraries(smp::torch INTERFACE smp::torch_cpu smp::c10)
endfunction()

smp_find_torch()
if(CMAKE_SCRIPT_MODE_FILE)
  foreach(key root version why error)
    string(TOUPPER SMP_TORCH_${key} variable)
    execute_process(COMMAND ${CMAKE_COMMAND} -E echo "${key}=${${variable}}")
  endforeach()
  foreach(one IN LISTS SMP_TORCH_PASSED_OVER)
    execute_process(COMMAND ${CMAKE_COMMAND} -E echo "passed_over=${one}")
  endforeach()
elseif(SMP_TORCH_ERROR)
  message(FATAL_ERROR "${SMP_TORCH_ERROR}")
elseif(NOT SMP_TORCH_ROOT)
  list(JOIN SMP_TORCH_PASSED_OVER "\n  " passed_over)
  message(FATAL_ERROR
    "LibTorch ${SMP_TORCH_MINIMUM} or newer was not found. Either let ./smp install it (./smp build), or "
    "install a wheel (pip install torch), or unpack LibTorch and configure with "
    "-DSMP_TORCH_DIR=/path/to/libtorch.\n  ${passed_over}")
elseif(NOT TARGET smp::torch)
  message(STATUS "LibTorch ${SMP_TORCH_VERSION} in ${SMP_TORCH_ROOT} (${SMP_TORCH_WHY})")
  smp_add_torch_target("${SMP_TORCH_ROOT}")
endif()
