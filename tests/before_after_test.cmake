# samples/before_after: the ranks print the losses that one process prints; and if files are named, their programs differ
# in few lines.
#   cmake -DBEFORE="<program>;<arguments>" -DAFTER="<launcher>;<program>;<arguments>"
#         [-DOLD=<file> -DNEW=<file> -DMOST=<lines>] -P before_after_test.cmake
cmake_minimum_required(VERSION 3.25)

if(DEFINED MOST)
  execute_process(COMMAND diff --unchanged-line-format= --old-line-format=- --new-line-format=+ ${OLD} ${NEW}
    OUTPUT_VARIABLE lines)
  foreach(sign - +)
    string(REGEX REPLACE "[^${sign}]" "" such "${lines}")
    string(LENGTH "${such}" count)
    if(count EQUAL 0 OR count GREATER MOST)
      message(FATAL_ERROR "diff ${OLD} ${NEW} has ${count} lines with ${sign}, expected 1 to ${MOST}")
    endif()
  endforeach()
endif()

execute_process(COMMAND ${BEFORE} OUTPUT_VARIABLE before COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${AFTER} OUTPUT_VARIABLE after COMMAND_ERROR_IS_FATAL ANY)
if(before STREQUAL "" OR NOT before STREQUAL after)
  message(FATAL_ERROR "one process printed\n${before}the ranks printed\n${after}")
endif()
