# What keeps builds short where CMAKE_UNITY_BUILD is on (all presets but dev, in which each source is compiled by what
# it includes itself).
#
#   smp_join(RESULT NAME SOURCES…)   sets RESULT to a few files that include the sources, those that need LibTorch's
#                                    headers apart from the others
#   smp_precompile(TARGET)           those headers, which take a compiler half a minute, are parsed once for all targets

# Sets `result` to whether a source or header includes LibTorch's large headers, itself or through one of ours. What is
# out of date here costs time, and nothing else.
function(smp_includes_torch file result)
  get_property(known GLOBAL PROPERTY SMP_INCLUDES_TORCH_${file} SET)
  if(NOT known)
    set(includes FALSE)
    set_property(GLOBAL PROPERTY SMP_INCLUDES_TORCH_${file} FALSE)  # for headers that name themselves
    cmake_path(GET file PARENT_PATH folder)
    file(STRINGS "${file}" lines REGEX "^#include [<\"]")
    foreach(line IN LISTS lines)
      if(line MATCHES "<(torch|ATen)/")
        set(includes TRUE)
        break()
      endif()
      string(REGEX REPLACE "^#include [<\"]([^>\"]*).*" "\\1" name "${line}")
      if(NOT name MATCHES "/|\\.h$")  # the standard library's
        continue()
      endif()
      if(IS_ABSOLUTE "${name}")  # of a joined file
        smp_includes_torch(${name} includes)
      endif()
      foreach(root ${folder} ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests
              ${PROJECT_SOURCE_DIR}/samples)
        if(EXISTS ${root}/${name})
          cmake_path(SET path NORMALIZE ${root}/${name})
          smp_includes_torch(${path} includes)
          break()
        endif()
      endforeach()
      if(includes)
        break()
      endif()
    endforeach()
    set_property(GLOBAL PROPERTY SMP_INCLUDES_TORCH_${file} ${includes})
  endif()
  get_property(includes GLOBAL PROPERTY SMP_INCLUDES_TORCH_${file})
  set(${result} ${includes} PARENT_SCOPE)
endfunction()

# Every joined file pays some seconds for the templates that LibTorch's headers leave to its end, so there are few; but
# more than one, of about equal size, where a compiler would need too much memory and other cores would wait.
function(smp_join result name)
  set(files "")
  set(plain "")
  set(torch "")
  if(NOT CMAKE_UNITY_BUILD)
    set(${result} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  foreach(source IN LISTS ARGN)
    smp_includes_torch(${source} includes)
    if(includes)
      list(APPEND torch ${source})
    else()
      list(APPEND plain ${source})
    endif()
  endforeach()
  set(most 30)
  if(CMAKE_UNITY_BUILD_BATCH_SIZE)
    set(most ${CMAKE_UNITY_BUILD_BATCH_SIZE})
  endif()
  list(LENGTH plain count)
  if(torch AND count LESS 4)  # not worth a file
    list(PREPEND torch ${plain})
    set(plain "")
  endif()
  foreach(kind plain torch)
    list(LENGTH ${kind} count)
    math(EXPR batches "(${count} + ${most} - 1) / ${most}")
    set(begin 0)
    set(batch 0)
    while(batch LESS batches)
      math(EXPR end "${count} * (${batch} + 1) / ${batches}")
      math(EXPR size "${end} - ${begin}")
      list(SUBLIST ${kind} ${begin} ${size} sources)
      list(TRANSFORM sources REPLACE "(.+)" "#include \"\\1\"")
      list(JOIN sources "\n" text)
      set(file ${SMP_GENERATED_DIR}/joined/${name}_${kind}_${batch}.cpp)
      file(CONFIGURE OUTPUT ${file} CONTENT "${text}\n" @ONLY)
      list(APPEND files ${file})
      set(begin ${end})
      math(EXPR batch "${batch} + 1")
    endwhile()
  endforeach()
  set(${result} ${files} PARENT_SCOPE)
endfunction()

# Made at the first use.
function(smp_add_torch_headers)
  if(TARGET smp_torch_headers)
    return()
  endif()
  set(source ${SMP_GENERATED_DIR}/torch_headers.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "")
  add_library(smp_torch_headers OBJECT ${source})
  target_link_libraries(smp_torch_headers PRIVATE smp_flags smp::torch)
  target_precompile_headers(smp_torch_headers PRIVATE <torch/torch.h>)
  smp_compile_alike(smp_torch_headers)
  # What ccache compares instead of 700 MB, which differ from one folder to the next (CCACHE_PCH_EXTSUM).
  file(TIMESTAMP ${SMP_TORCH_ROOT}/include/torch/csrc/api/include/torch/torch.h time)
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/smp_torch_headers.dir/cmake_pch.hxx.gch.sum
       CONTENT "LibTorch ${SMP_TORCH_VERSION} in ${SMP_TORCH_ROOT}, of ${time}; hidden, position-independent\n")
endfunction()

# Precompiled headers serve those that are compiled alike: libraries and programs are position-independent in one way, and
# nobody exports what these headers define.
function(smp_compile_alike target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_compile_options(${target} PRIVATE -fPIC $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)  # the latter for ccache
endfunction()

# Does nothing for sources that include nothing of LibTorch, unless CMake joins them with one that does.
function(smp_precompile target)
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  get_target_property(joined ${target} UNITY_BUILD)
  set(any FALSE)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder})
    if(NOT source MATCHES "\\.cpp$")
      continue()
    endif()
    smp_includes_torch(${source} includes)
    if(includes)
      set(any TRUE)
    elseif(NOT joined)
      set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
  if(CMAKE_UNITY_BUILD AND any)
    smp_add_torch_headers()
    smp_compile_alike(${target})
    target_precompile_headers(${target} REUSE_FROM smp_torch_headers)
  endif()
endfunction()
