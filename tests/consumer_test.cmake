# A project outside the source tree: runs what the README says under "In your own project", in a scratch folder
# instead of the user's, and with a LibTorch whose path has a space. Before that: a build of nothing yet does not
# install half of itself. After it: a project with a distributed module of its own.
#
#   cmake -DROOT=<source folder> -DBUILD=<build folder> -DWORK=<scratch folder> -DTORCH=<folder of LibTorch>
#         -DLAUNCHER=<ccache or nothing> -P consumer_test.cmake
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
file(CREATE_LINK ${TORCH} "${WORK}/lib torch" SYMBOLIC)
set(ENV{CMAKE_CXX_COMPILER_LAUNCHER} "${LAUNCHER}")
set(ENV{SMP_TORCH_DIR} "${WORK}/lib torch")

# Nothing of this build was compiled.
execute_process(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${ROOT} -B ${WORK}/partial -DSMP_BUILD_TESTS=OFF
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${WORK}/partial --prefix ${WORK}/nothing
  RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE said)
if(status EQUAL 0 OR EXISTS ${WORK}/nothing OR NOT said MATCHES "./smp install PREFIX")
  message(FATAL_ERROR "the installation of an unfinished build ended with ${status} and said: ${said}")
endif()

file(READ ${ROOT}/README.md readme)
if(NOT readme MATCHES "```sh\n(\\./smp install [^`]*)```")
  message(FATAL_ERROR "README.md has no block of commands that begins with ./smp install")
endif()
set(commands "${CMAKE_MATCH_1}")
string(REPLACE "~/" "${WORK}/" commands "${commands}")
string(REPLACE "$HOME/" "${WORK}/" commands "${commands}")
set(ENV{SMP_BUILT} ${BUILD})
set(ENV{OMPI_ALLOW_RUN_AS_ROOT} 1)
set(ENV{OMPI_ALLOW_RUN_AS_ROOT_CONFIRM} 1)
execute_process(COMMAND bash -exuo pipefail -c "${commands}" WORKING_DIRECTORY ${ROOT}
  OUTPUT_VARIABLE said ECHO_OUTPUT_VARIABLE COMMAND_ERROR_IS_FATAL ANY)
if(NOT said MATCHES "lib torch \\(named by SMP_TORCH_DIR\\)" OR NOT said MATCHES "smp [0-9.]+: loss ")
  message(FATAL_ERROR "these commands of the README did something else:\n${commands}")
endif()

# The package remembers the LibTorch that smp was built with.
unset(ENV{SMP_TORCH_DIR})
execute_process(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${ROOT}/tests/consumer -B ${WORK}/again
  -DCMAKE_PREFIX_PATH=${WORK}/smp OUTPUT_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
string(FIND "${said}" "in ${TORCH} (" found)
if(found EQUAL -1)
  message(FATAL_ERROR "find_package(smp) did not take ${TORCH}:\n${said}")
endif()

# A distributed module of the project's own.
execute_process(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${ROOT}/tests/consumer/spread -B ${WORK}/spread
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH=${WORK}/smp OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/spread OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
foreach(ranks 2 4)
  execute_process(COMMAND mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n ${ranks} ${WORK}/spread/spread
    OUTPUT_VARIABLE said ECHO_OUTPUT_VARIABLE COMMAND_ERROR_IS_FATAL ANY)
  if(NOT said MATCHES "prototypes over ${ranks} ranks: weights of 5 steps within ")
    message(FATAL_ERROR "tests/consumer/spread on ${ranks} ranks said: ${said}")
  endif()
endforeach()

# The tool has one name, whoever built it.
execute_process(COMMAND ${WORK}/smp/bin/smp --help OUTPUT_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
if(NOT said MATCHES "Usage: smp " OR said MATCHES "smp-cli")
  message(FATAL_ERROR "the installed tool calls itself something else:\n${said}")
endif()
