# What `smp config --from nemo` prints as a command trains, with the files that it wrote.
#   cmake -DSMP=<the tool> -DLLAMA="<launcher>;<program>" -DFILE=<YAML> -DWORK=<folder> -P nemo_test.cmake
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})

execute_process(COMMAND ${SMP} config --from nemo ${FILE} --out translated WORKING_DIRECTORY ${WORK}
  OUTPUT_VARIABLE printed COMMAND_ERROR_IS_FATAL ANY)
if(NOT printed MATCHES "mpirun -n 2 llama ([^\n]*)\n$")
  message(FATAL_ERROR "expected a command for 2 ranks, and nothing lost:\n${printed}")
endif()
separate_arguments(flags UNIX_COMMAND "${CMAKE_MATCH_1}")

execute_process(COMMAND ${LLAMA} ${flags} WORKING_DIRECTORY ${WORK} OUTPUT_VARIABLE trained COMMAND_ERROR_IS_FATAL ANY)
if(NOT trained MATCHES "2 layers, width 32, 4 heads, 2 of keys.*2 = 2 stages x 1.*8 rows = 2 rows x 4 microbatches.*step +6/6 ")
  message(FATAL_ERROR "it trained something else:\n${trained}")
endif()
execute_process(COMMAND ${SMP} config translated/smp.json --brief WORKING_DIRECTORY ${WORK}
  OUTPUT_VARIABLE settings COMMAND_ERROR_IS_FATAL ANY)
if(NOT settings MATCHES "precision +\"bf16\" +translated.smp.json")
  message(FATAL_ERROR "the settings are others:\n${settings}")
endif()
