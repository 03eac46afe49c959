# `smp plan FILE --schedule ...` prints the expected table, and says what is wrong with a schedule;
# `smp schedule` prints lists and checks them.
#   cmake -DSMP=<the tool> -DDATA=<tests/data/schedules> -P plan_schedules_test.cmake
cmake_minimum_required(VERSION 3.25)

# Sets output, error and status of `smp <arguments>`.
macro(call)
  execute_process(COMMAND ${SMP} ${ARGN} WORKING_DIRECTORY ${DATA}
    OUTPUT_VARIABLE output ERROR_VARIABLE error RESULT_VARIABLE status)
endmacro()
macro(plan)
  call(plan ${ARGN})
endmacro()

function(expect_error text)
  plan(${ARGN})
  string(FIND "${error}" "${text}" place)
  if(NOT status EQUAL 2 OR place LESS 0 OR NOT output STREQUAL "")
    message(SEND_ERROR "plan ${ARGN}: expected exit 2 and\n${text}\nfound exit ${status}, output\n${output}\nerror\n${error}")
  endif()
endfunction()

plan(plan.json --schedule all,file:own.txt)
file(READ ${DATA}/expected.txt expected)
if(NOT status EQUAL 0 OR NOT output STREQUAL expected)
  message(SEND_ERROR "expected\n${expected}\nfound exit ${status}\n${output}${error}")
endif()

plan(plan.json --schedule 1f1b --microbatches 10)  # (10 + 3 - 1) (10 ms + 20 ms)
if(NOT status EQUAL 0 OR NOT output MATCHES "3 stages, 10 microbatches a step" OR NOT output MATCHES "1f1b +360 ms")
  message(SEND_ERROR "of 10 microbatches, exit ${status}:\n${output}${error}")
endif()

plan(${DATA} --schedule all,file:own.txt)  # the folder stands for its plan.json
if(NOT status EQUAL 0 OR NOT output STREQUAL expected)
  message(SEND_ERROR "of a folder, expected\n${expected}\nfound exit ${status}\n${output}${error}")
endif()

plan(--nonsense)
if(NOT status EQUAL 2)
  message(SEND_ERROR "a wrong call: exit ${status}\n${error}")
endif()

expect_error("broken.txt: rank 2, position 8, end of its list: B2 is missing"
  plan.json --schedule file:broken.txt)
expect_error("a schedule for 4 microbatches, and a step has 6" plan.json --schedule file:own.txt --microbatches 6)
expect_error("unknown pipeline schedule \"gpipe\"" plan.json --schedule gpipe)
expect_error("cannot" plan.json --schedule file:missing.txt)
expect_error("--schedule needs names" plan.json --schedule ,)
expect_error("plan --microbatches is for --schedule" plan.json --microbatches 8)
expect_error("true ended before it made a plan: nothing was written to" --ranks 2 --out ${WORK}/none -- true)
expect_error("cannot start ./no-such-program: No such file" --ranks 2 -- ./no-such-program)
plan(--ranks 2 --out /proc/none -- touch ${WORK}/started)
if(NOT status EQUAL 1 OR NOT error MATCHES "cannot create folder /proc/none: .*; --out names another folder" OR
   EXISTS ${WORK}/started)
  message(SEND_ERROR "of a folder that cannot be made: exit ${status}\n${output}${error}")
endif()
if(EXISTS ${WORK}/none OR EXISTS ${DATA}/plans)
  message(SEND_ERROR "a program that made no plan left a folder for it")
endif()
expect_error("there is no nowhere; a program that makes an smp::RunLog" nowhere)
plan(--ranks 2 --out ${WORK}/none -- sh -c "exit 7")
if(NOT status EQUAL 7)
  message(SEND_ERROR "of a program that ends with 7: exit ${status}\n${output}${error}")
endif()
file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
file(COPY ${DATA}/plan.json DESTINATION ${WORK})
expect_error("there is no ${WORK}/trace-simulated.json" ${WORK}/plan.json --schedule all)
file(WRITE ${WORK}/trace-simulated.json "{\"format\": \"smp-trace\"}")
expect_error("there is no \"step\"" ${WORK}/plan.json --schedule all)

# ---- smp schedule

function(expect_schedule text exit)
  call(schedule ${ARGN})
  string(FIND "${output}${error}" "${text}" place)
  if(NOT status EQUAL exit OR place LESS 0)
    message(SEND_ERROR "schedule ${ARGN}: expected exit ${exit} and\n${text}\nfound exit ${status}\n${output}${error}")
  endif()
endfunction()

expect_schedule("rank 2: F0 B0 F1 B1 F2 B2 F3 B3" 0 1f1b --ranks 3 --microbatches 4)
expect_schedule("wrote ${WORK}/saved.txt" 0 zero_bubble+1 --ranks 3 --microbatches 4 --out ${WORK}/saved.txt)
call(schedule file:${WORK}/saved.txt --ranks 3 --microbatches 4)
file(READ ${WORK}/saved.txt saved)
if(NOT status EQUAL 0 OR NOT output STREQUAL saved)
  message(SEND_ERROR "what was saved comes back as\n${output}${error}\nand was\n${saved}")
endif()
expect_schedule("microbatches kept on the rank would be 3, and 2" 2 1f1b --ranks 3 --microbatches 4 --keep 2)
expect_schedule("has no lists" 2 interleaved --ranks 3 --microbatches 4)
expect_schedule("broken.txt: rank 2, position 8" 2 file:broken.txt --ranks 3 --microbatches 4)
