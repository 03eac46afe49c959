# The README's program is the compiled sample, and its diff is the diff of the two compiled samples.
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

# Every file the README links to exists.
string(REPLACE "](" "\nLINK:" links "${readme}")  # brackets would confuse CMake's lists
string(REGEX MATCHALL "LINK:[A-Za-z0-9_./-]+\\)" links "${links}")
foreach(link IN LISTS links)
  string(REGEX REPLACE "LINK:(.*)\\)" "\\1" path "${link}")
  if(NOT EXISTS "${ROOT}/${path}")
    message(FATAL_ERROR "README.md links to ${path}, which does not exist")
  endif()
endforeach()
