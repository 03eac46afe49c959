# samples/t5: what the demo's model takes on each stage is what was predicted. With the simple schedule all microbatches
# are held at once, whatever the timing.
#   cmake -DT5="<launcher>;<program>" -DDATA=<text> -DWORK=<folder> -P measured_memory_test.cmake
cmake_minimum_required(VERSION 3.25)

set(most_apart 4)  # percent

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env SMP_RUNS_FOLDER=${WORK} ${T5} --steps 4 --schedule simple --data ${DATA}
  OUTPUT_VARIABLE printed COMMAND_ERROR_IS_FATAL ANY)
file(GLOB run ${WORK}/demo-*)
file(READ ${run}/memory.json memory)
file(READ ${run}/plan.json plan)
string(JSON stages LENGTH ${plan} summary stages)
string(JSON measured_stages LENGTH ${memory} peak_bytes)
if(NOT stages EQUAL measured_stages)
  message(FATAL_ERROR "${stages} stages, and ${measured_stages} measured ones")
endif()
math(EXPR last "${stages} - 1")
foreach(stage RANGE ${last})
  set(predicted 0)
  foreach(part weights gradients optimizer buffers activations)
    string(JSON bytes GET ${plan} summary stages ${stage} ${part})
    math(EXPR predicted "${predicted} + ${bytes}")
  endforeach()
  string(JSON measured GET ${memory} peak_bytes ${stage})
  math(EXPR apart "1000 * (${predicted} - ${measured}) / ${measured}")
  message(STATUS "stage ${stage}: predicted ${predicted}, measured ${measured} bytes: ${apart} per mille")
  math(EXPR limit "10 * ${most_apart}")
  if(apart GREATER limit OR apart LESS -${limit})
    message(SEND_ERROR "stage ${stage}: more than ${most_apart} % apart")
  endif()
endforeach()
