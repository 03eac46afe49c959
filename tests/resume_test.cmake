# samples/gpt: a job that is interrupted and goes on ends with the bits of one that is not, and may go
# on with other degrees.
#   cmake -DGPT="<launcher>;<program>" -DDATA=<text> -DWORK=<folder> -P resume_test.cmake
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})

function(train folder steps)
  execute_process(
    COMMAND ${GPT} --size tiny --data ${DATA} --generate 0 --check 0 --checkpoint ${folder} --steps ${steps} ${ARGN}
    WORKING_DIRECTORY ${WORK} OUTPUT_VARIABLE printed COMMAND_ERROR_IS_FATAL ANY)
  set(printed "${printed}" PARENT_SCOPE)
endfunction()

train(whole 5 --pp 2)
train(parts 3 --pp 2 --save-every 2)
if(NOT EXISTS ${WORK}/parts/step-2/model.safetensors OR NOT EXISTS ${WORK}/parts/step-3/model.safetensors)
  message(FATAL_ERROR "not saved after every second step and at the end")
endif()
train(parts 5 --pp 2)
if(NOT printed MATCHES "resumes after step 3 of parts")
  message(FATAL_ERROR "it began anew:\n${printed}")
endif()
foreach(file model optimizer)
  execute_process(COMMAND ${CMAKE_COMMAND} -E compare_files whole/step-5/${file}.safetensors
    parts/step-5/${file}.safetensors WORKING_DIRECTORY ${WORK} COMMAND_ERROR_IS_FATAL ANY)
endforeach()

# Goes on before the end of what the job before logged: no step is logged twice.
file(WRITE ${WORK}/parts/latest step-2)
train(parts 5 --pp 2)
if(NOT printed MATCHES "resumes after step 2 of parts")
  message(FATAL_ERROR "it did not go on after step 2:\n${printed}")
endif()
file(STRINGS ${WORK}/parts/run run)
file(STRINGS ${run}/metrics.jsonl steps)
list(TRANSFORM steps REPLACE "^{\"step\":([0-9]+),.*" "\\1")
if(NOT steps STREQUAL "1;2;3;4;5")
  message(FATAL_ERROR "${run}/metrics.jsonl has the steps ${steps}")
endif()

train(parts 6 --tp 2)
if(NOT printed MATCHES "resumes after step 5 of parts.*step +6/6 +loss")
  message(FATAL_ERROR "it did not go on with other degrees:\n${printed}")
endif()
train(parts 6 --pp 2)  # nothing is left to do
