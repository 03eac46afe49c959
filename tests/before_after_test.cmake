# samples/before_after: the ranks print the losses that one process prints.
#   cmake -DBEFORE=<program> -DAFTER="<launcher>;<program>" -P before_after_test.cmake
cmake_minimum_required(VERSION 3.25)

execute_process(COMMAND ${BEFORE} OUTPUT_VARIABLE before COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${AFTER} OUTPUT_VARIABLE after COMMAND_ERROR_IS_FATAL ANY)
if(NOT before STREQUAL after)
  message(FATAL_ERROR "one process printed\n${before}the ranks printed\n${after}")
endif()
