# The README's program is the compiled sample, its diff is the diff of the two compiled samples, its CMakeLists.txt is
# that of a project that a test builds, and the commands that it and the docs name exist.
#   cmake -DROOT=<source folder> -P readme_test.cmake
cmake_minimum_required(VERSION 3.25)

file(READ ${ROOT}/README.md readme)

file(READ ${ROOT}/samples/quickstart/main.cpp program)
string(REGEX REPLACE ".*// README begin\n(.*)// README end.*" "\\1" program "${program}")
string(FIND "${readme}" "```cpp\n${program}```" found)
if(found EQUAL -1)
  message(FATAL_ERROR "README.md does not hold the marked region of samples/quickstart/main.cpp; copy it")
endif()

execute_process(COMMAND diff -U0 before.cpp after.cpp
  WORKING_DIRECTORY ${ROOT}/samples/before_after OUTPUT_VARIABLE diff)
string(REGEX REPLACE "[^\n]*\n[^\n]*\n(.*)" "\\1" diff "${diff}")  # without the two file names
string(REGEX REPLACE "@@[^\n]*\n" "" diff "${diff}")
string(FIND "${readme}" "```diff\n${diff}```" found)
if(found EQUAL -1)
  message(FATAL_ERROR "README.md does not hold the diff of samples/before_after; copy this:\n${diff}")
endif()

file(READ ${ROOT}/tests/consumer/CMakeLists.txt project)
string(FIND "${readme}" "```cmake\n${project}```" found)
if(found EQUAL -1)
  message(FATAL_ERROR "README.md does not hold tests/consumer/CMakeLists.txt; copy it")
endif()

# Every command of ./smp that somebody names is in its help, and every program of ./smp perf in perf/ranks.
execute_process(COMMAND ${ROOT}/smp --help OUTPUT_VARIABLE help COMMAND_ERROR_IS_FATAL ANY)
file(READ ${ROOT}/perf/ranks ranks)
file(GLOB pages ${ROOT}/README.md ${ROOT}/docs/*.md ${ROOT}/perf/README.md ${ROOT}/samples/*/README.md ${ROOT}/src/*/README.md)
foreach(page IN LISTS pages)
  file(READ ${page} text)
  string(REGEX MATCHALL "[./]*/smp [a-z]+( [a-z0-9_]+)?" commands "${text}")
  foreach(command IN LISTS commands)
    string(REGEX REPLACE ".*/smp ([a-z]+) ?(.*)" "\\1;\\2" words "${command}")
    list(GET words 0 verb)
    list(GET words 1 program)
    string(FIND "${help}" "./smp ${verb} " found)
    if(found EQUAL -1 AND command MATCHES "^\\./smp")
      message(FATAL_ERROR "${page} names \"${command}\", but ./smp --help knows no ${verb}")
    elseif(verb STREQUAL "perf" AND program AND NOT "\n${ranks}" MATCHES "\n${program} ")
      message(FATAL_ERROR "${page} names \"${command}\", but perf/ranks has no ${program}")
    endif()
  endforeach()
endforeach()

# Every file the README links to exists.
string(REPLACE "](" "\nLINK:" links "${readme}")  # brackets would confuse CMake's lists
string(REGEX MATCHALL "LINK:[A-Za-z0-9_./-]+\\)" links "${links}")
foreach(link IN LISTS links)
  string(REGEX REPLACE "LINK:(.*)\\)" "\\1" path "${link}")
  if(NOT EXISTS "${ROOT}/${path}")
    message(FATAL_ERROR "README.md links to ${path}, which does not exist")
  endif()
endforeach()
