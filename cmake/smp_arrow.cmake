# libsmp_arrow.so, if PyPI's pyarrow is there: it ships Arrow's C++ library and headers, but nothing that find_package()
# would know. A shared object of its own, loaded when it is first needed, so that nobody needs Arrow who reads no such files.
#
#   smp_add_arrow()   the target smp_arrow, or a line that says what is missing
#
# Searched in this order: SMP_PYARROW_DIR (a variable here or of the environment; the folder pyarrow), beside LibTorch's
# wheel, python3, and ~/.cache/smp/venv-pyarrow.

# Sets `result` to the folders that may be pyarrow.
function(smp_pyarrow_folders result)
  cmake_path(GET SMP_TORCH_ROOT PARENT_PATH beside_torch)
  execute_process(
    COMMAND python3 -c "import importlib.util as u; print(u.find_spec('pyarrow').submodule_search_locations[0])"
    OUTPUT_VARIABLE of_python OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(cache "$ENV{XDG_CACHE_HOME}")
  if(NOT cache)
    set(cache "$ENV{HOME}/.cache")
  endif()
  file(GLOB cached "${cache}/smp/venv-pyarrow/lib/python3*/site-packages/pyarrow")
  set(${result} ${SMP_PYARROW_DIR} $ENV{SMP_PYARROW_DIR} ${beside_torch}/pyarrow ${of_python} ${cached} PARENT_SCOPE)
endfunction()

# Sets `result` to the library in `folder` that its headers are of, or to nothing.
function(smp_arrow_library folder result)
  set(${result} "" PARENT_SCOPE)
  if(EXISTS "${folder}/include/arrow/util/config.h")
    file(STRINGS "${folder}/include/arrow/util/config.h" line REGEX "#define ARROW_SO_VERSION")
    string(REGEX MATCH "[0-9]+" number "${line}")
    if(EXISTS "${folder}/libarrow.so.${number}")
      set(${result} "${folder}/libarrow.so.${number}" PARENT_SCOPE)
    endif()
  endif()
endfunction()

function(smp_add_arrow)
  if(SMP_SANITIZE)  # which refuse RTLD_DEEPBIND
    return()
  endif()
  smp_pyarrow_folders(folders)
  foreach(one IN LISTS folders)
    set(folder ${one})
    smp_arrow_library("${folder}" library)
    if(library)
      break()
    endif()
  endforeach()
  if(NOT library)
    message(STATUS "No Arrow (PyPI's pyarrow: pip install pyarrow, and configure again; or name its folder by "
      "SMP_PYARROW_DIR): smp::data reads no folders of datasets")
    return()
  endif()
  message(STATUS "Arrow of ${library}")
  add_library(smp_arrow MODULE ${PROJECT_SOURCE_DIR}/src/data/arrow/plugin.cpp)
  set_target_properties(smp_arrow PROPERTIES UNITY_BUILD OFF
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  target_include_directories(smp_arrow PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_include_directories(smp_arrow SYSTEM PRIVATE ${folder}/include)
  target_link_libraries(smp_arrow PRIVATE smp_flags ${library})
  if(TARGET smp)
    add_dependencies(smp smp_arrow)  # who builds one wants both
    add_dependencies(smp_internal smp_arrow)
  endif()
endfunction()
