# Reads the #include lines of src/ and include/ and fails on an arrow between layers that points up, and on
# a public header that shows more than the standard library and LibTorch.
#
#   cmake -DROOT=<source folder> -P layers_test.cmake

cmake_minimum_required(VERSION 3.25)

# What each layer may include: itself and everything below it.
set(BELOW_base base)
set(BELOW_module module base)
set(BELOW_schedule schedule base)
set(BELOW_d2d d2d base)
set(BELOW_partition partition schedule module base)
set(BELOW_server server d2d schedule module base)
set(BELOW_report report partition schedule module base)
set(BELOW_api api report server partition d2d schedule module base)
set(BELOW_cli cli api report server partition d2d schedule module base)
set(LAYERS base module schedule d2d partition server report api cli)

# Public headers of which the name does not tell the layer: not one src/<layer>/<name>.cpp, but none or two.
set(LAYER_OF_export.h base)
set(LAYER_OF_version.h base)
set(LAYER_OF_detail module)
set(LAYER_OF_nn module)
set(LAYER_OF_call.h module)
set(LAYER_OF_module.h module)
set(LAYER_OF_nn.h module)
set(LAYER_OF_step.h api)
set(LAYER_OF_step_output.h api)
set(LAYER_OF_smp.h api)

# Libraries that stay inside one layer: the start of the included path, then the layers.
set(PRIVATE_LIBRARIES "mpi\\.h" "boost/" "google/protobuf/" "nlohmann/" "CLI/" "spdlog/")
set(ONLY_IN "d2d" "base" "d2d,server" "base,partition,report,api,cli" "base,api,cli" "base")

function(complain file text)
  message("${file}: ${text}")
  set_property(GLOBAL APPEND PROPERTY COMPLAINTS ${file})
endfunction()

# Sets `result` to the paths that `file` includes.
function(included_paths file result)
  file(STRINGS ${ROOT}/${file} lines REGEX "^[ \t]*#[ \t]*include[ \t]*[<\"]")
  list(TRANSFORM lines REPLACE ".*[<\"]([^>\"]+)[>\"].*" "\\1")
  set(${result} "${lines}" PARENT_SCOPE)
endfunction()

# Sets `result` to the layer of the public header include/smp/<name>, or to nothing.
function(layer_of_public name result)
  string(REGEX REPLACE "/.*" "" first ${name})
  if(DEFINED LAYER_OF_${first})
    set(${result} ${LAYER_OF_${first}} PARENT_SCOPE)
    return()
  endif()
  cmake_path(GET name STEM stem)
  set(${result} "" PARENT_SCOPE)
  foreach(layer IN LISTS LAYERS)
    if(EXISTS ${ROOT}/src/${layer}/${stem}.cpp)
      set(${result} ${layer} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# Sets `result` to the layer that an included path belongs to, or to nothing if it is not ours.
function(layer_of_included path result)
  set(${result} "" PARENT_SCOPE)
  if(path MATCHES "^smp/(.+)$")
    layer_of_public(${CMAKE_MATCH_1} layer)
    set(${result} "${layer}" PARENT_SCOPE)
  elseif(path MATCHES "^([a-z0-9]+)/" AND CMAKE_MATCH_1 IN_LIST LAYERS)
    set(${result} ${CMAKE_MATCH_1} PARENT_SCOPE)
  endif()
endfunction()

# An include must stay in the file's layer or point down.
function(check_arrow file layer path)
  layer_of_included(${path} target)
  if(target AND NOT target IN_LIST BELOW_${layer})
    complain(${file} "layer ${layer} must not include ${path} of layer ${target}")
  endif()
endfunction()

function(check_private_libraries file layer path)
  foreach(library only_in IN ZIP_LISTS PRIVATE_LIBRARIES ONLY_IN)
    if(path MATCHES "^${library}")
      string(REPLACE "," ";" allowed "${only_in}")
      if(NOT layer IN_LIST allowed)
        complain(${file} "only ${only_in} may include ${path}")
      endif()
    endif()
  endforeach()
endfunction()

# Standard headers have no folder and no extension; Boost.PFR is the one exception, in the codec.
function(check_public file path)
  if(NOT path MATCHES "^[a-z_0-9]+$|^(smp|torch|ATen|c10)/"
     AND NOT (path MATCHES "^boost/pfr" AND file MATCHES "/(codec|fields)\\.h$"))
    complain(${file} "a public header shows only std and LibTorch, not ${path}")
  endif()
endfunction()

foreach(layer IN LISTS LAYERS)
  file(GLOB_RECURSE files RELATIVE ${ROOT} ${ROOT}/src/${layer}/*.h ${ROOT}/src/${layer}/*.cpp)
  foreach(file IN LISTS files)
    included_paths(${file} paths)
    foreach(path IN LISTS paths)
      check_arrow(${file} ${layer} ${path})
      check_private_libraries(${file} ${layer} ${path})
    endforeach()
  endforeach()
endforeach()

file(GLOB_RECURSE files RELATIVE ${ROOT}/include/smp ${ROOT}/include/smp/*.h)
foreach(name IN LISTS files)
  set(file include/smp/${name})
  layer_of_public(${name} layer)
  if(NOT layer)
    complain(${file} "its layer is unknown: name it in tests/layers_test.cmake")
    continue()
  endif()
  included_paths(${file} paths)
  foreach(path IN LISTS paths)
    check_public(${file} ${path})
    check_arrow(${file} ${layer} ${path})
  endforeach()
endforeach()

get_property(complaints GLOBAL PROPERTY COMPLAINTS)
list(LENGTH complaints count)
if(count)
  message(FATAL_ERROR "${count} include lines break the layers")
endif()
