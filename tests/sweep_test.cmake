# `smp sweep` runs every combination, prints a row for each in the order of the flags, says why rows failed, and keeps what
# the runs left.
#   cmake -DSMP=<the tool> -DT5=<the sample> -DDATA=<text> -DWORK=<folder> -P sweep_test.cmake
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})

# Sets output, error and status of `smp sweep <arguments>`.
macro(sweep)
  execute_process(COMMAND ${SMP} sweep ${ARGN} WORKING_DIRECTORY ${WORK}
    OUTPUT_VARIABLE output ERROR_VARIABLE error RESULT_VARIABLE status)
endmacro()

macro(expect condition_status pattern)
  if(NOT status EQUAL ${condition_status} OR NOT output MATCHES "${pattern}")
    message(SEND_ERROR "expected exit ${condition_status} and\n${pattern}\nfound exit ${status}, output\n${output}\nerror\n${error}")
  endif()
endmacro()

function(expect_refusal text)
  sweep(${ARGN})
  string(FIND "${error}" "${text}" place)
  if(NOT status EQUAL 2 OR place LESS 0 OR NOT output STREQUAL "")
    message(SEND_ERROR "sweep ${ARGN}: expected exit 2 and\n${text}\nfound exit ${status}, output\n${output}\nerror\n${error}")
  endif()
endfunction()

# ---- a training program: two rows that end well, two of degrees that do not fit the ranks

sweep(--ranks 2 --smp.pipeline_parallel_degree 2,3 --smp.microbatches=2,4 --out all --csv table.csv --json table.json
  -- ${T5} --config tiny --steps 3 --data ${DATA})
set(number "[0-9.]+")
set(well "${number} [mu]?s +${number} +${number} +[0-9]+ % +${number} MiB +${number} m?s\n")
set(failed "- +- +- +- +- +${number} m?s\n +failed: [^\n]*pipeline_parallel_degree[^\n]*\n( [^\n]*\n)*")
expect(0 "^pipeline_parallel_degree  microbatches +a step  tokens/s +loss  bubble +memory  whole job
2 +2 +${well}2 +4 +${well}3 +2 +${failed}3 +4 +${failed}fastest: pipeline_parallel_degree 2, microbatches [24]
wrote all/sweep.txt")
if(NOT error MATCHES "run 1 of 4: pipeline_parallel_degree 2, microbatches 2, done in .*run 4 of 4: .*, failed in ")
  message(SEND_ERROR "it did not say how runs ended:\n${error}")
endif()
file(READ ${WORK}/table.json json)
string(JSON count LENGTH "${json}" runs)
string(JSON loss_of_2 GET "${json}" runs 0 loss)
string(JSON loss_of_4 GET "${json}" runs 1 loss)
string(JSON failure GET "${json}" runs 3 failure)
string(JSON folder GET "${json}" runs 1 folder)
string(SUBSTRING "${loss_of_2}" 0 6 beginning)  # microbatches change the order of sums only
if(NOT count EQUAL 4 OR NOT loss_of_4 MATCHES "^${beginning}" OR NOT failure MATCHES "pipeline_parallel_degree"
   OR NOT folder MATCHES "^all/002/demo-" OR NOT EXISTS ${WORK}/${folder}/report.html OR EXISTS ${WORK}/runs)
  message(SEND_ERROR "the sweep as JSON:\n${json}")
endif()
file(READ ${WORK}/${folder}/run.json run)
string(JSON origin GET "${run}" configuration microbatches origin)
string(JSON value GET "${run}" configuration microbatches value)
if(NOT value EQUAL 4 OR NOT origin STREQUAL "environment SMP_MICROBATCHES")
  message(SEND_ERROR "microbatches were ${value}, from ${origin}")
endif()
file(STRINGS ${WORK}/table.csv lines)
list(LENGTH lines count)
list(GET lines 1 first)
if(NOT count EQUAL 5 OR NOT first MATCHES "^2,2,${number},.*all/001/demo-[0-9-]+,all/001.log")
  message(SEND_ERROR "the sweep as CSV:\n${lines}")
endif()
foreach(file csv json)
  execute_process(COMMAND ${CMAKE_COMMAND} -E compare_files table.${file} all/sweep.${file}
    WORKING_DIRECTORY ${WORK} COMMAND_ERROR_IS_FATAL ANY)
endforeach()

# ---- other programs

sweep(--ranks 1,2 --smp.seed 1 --out none -- true)
expect(1 "^ranks  seed .*\n1 +1 +- .*failed: it ended well, but left no numbers: no smp::RunLog was made.*\n2 +1 +-")

sweep(--ranks 2 --smp.seed 7,8 --out said -- sh -c "echo before && echo 'smp: rank 1: too hot' >&2 && exit 3")
expect(1 "7 +- .*\n +failed: rank 1: too hot\n8 ")
file(READ ${WORK}/said/002.log log)
if(NOT log MATCHES "before" OR NOT log MATCHES "too hot")
  message(SEND_ERROR "its log holds\n${log}")
endif()

# Nothing is lost where the ends of children are ignored and there is no standard input, as under some supervisors.
execute_process(COMMAND sh -c "exec env --ignore-signal=CHLD \"$0\" \"$@\" <&-" ${SMP} sweep --ranks 1 --smp.seed 1,2
  --out unheard -- sh -c "echo 'too cold' && exit 3"
  WORKING_DIRECTORY ${WORK} OUTPUT_VARIABLE output ERROR_VARIABLE error RESULT_VARIABLE status)
expect(1 "1 +- .*failed: too cold\n2 +- ")

# A job that does not end is ended, with its ranks.
string(TIMESTAMP start "%s")
sweep(--ranks 2 --smp.seed 1,2 --timeout 1 --out late -- sleep 613.25)
string(TIMESTAMP end "%s")
expect(1 "1 +- .*failed: not done after 1 s .--timeout.\n2 +- ")
math(EXPR seconds "${end} - ${start}")
execute_process(COMMAND ps -eo args OUTPUT_VARIABLE processes)
if(seconds GREATER 30 OR processes MATCHES "\nsleep 613\\.25")
  message(SEND_ERROR "two jobs of a second took ${seconds} s; processes:\n${processes}")
endif()

# ---- calls that make no sense start nothing

expect_refusal("sweep needs a program" --ranks 2 --smp.microbatches 2,4)
expect_refusal("--ranks is required" --smp.microbatches 2,4 -- true)
expect_refusal("sweep needs something to vary" --ranks 2 -- true)
foreach(seconds 1e+300 inf nan 0 -1)
  expect_refusal("--timeout is ${seconds}, must be above 0 and at most 1e+09 seconds"
    --ranks 2 --smp.seed 1,2 --timeout ${seconds} --out overlong -- true)
endforeach()
expect_refusal("did you mean \"microbatches\"" --ranks 2 --smp.microbatch 2,4 -- true)
expect_refusal("cannot start ./no-such-program: No such file" --ranks 2 --smp.seed 1,2 -- ./no-such-program)
expect_refusal("cannot start no-such-program: it is in no folder of PATH" --ranks 2 --smp.seed 1,2 -- no-such-program)
sweep(--ranks 2 --smp.seed 1,2 --out unwritten --csv nowhere/table.csv -- true)
if(NOT status EQUAL 1 OR NOT error MATCHES "nowhere/table.csv")
  message(SEND_ERROR "of a file that cannot be written, exit ${status}:\n${error}")
endif()
sweep(--ranks 2 --smp.seed 1,2 --out /proc/none -- true)
if(NOT status EQUAL 1 OR NOT error MATCHES "cannot create folder /proc/none: .*; --out names another folder")
  message(SEND_ERROR "of a folder that cannot be made, exit ${status}:\n${error}")
endif()
if(EXISTS ${WORK}/sweeps OR EXISTS ${WORK}/unwritten/001.log)
  message(SEND_ERROR "something was started")
endif()
expect_refusal("all exists already" --ranks 2 --smp.seed 1,2 --out all -- true)
expect_refusal("the arguments of true set --smp.partitions to 2 in every run"
  --ranks 2 --smp.pipeline_parallel_degree 1,2 -- true --smp.partitions 2)
