# What every target of this build shares: language level, build type, warnings, sanitizers, run paths.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

include(GNUInstallDirs)
# Built and installed programs find LibTorch where it was linked.
set(CMAKE_INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
  endif()
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
  find_program(SMP_CCACHE ccache)
  if(SMP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # What one clone has compiled serves another, whichever folders they are in: see -fmacro-prefix-map.
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
        CCACHE_NOHASHDIR=1 CCACHE_PCH_EXTSUM=1 CCACHE_SLOPPINESS=pch_defines,time_macros ${SMP_CCACHE})
  endif()
endif()

add_library(smp_flags INTERFACE)
# Programs are the same wherever they were built: messages name sources by their place in the repository, and headers,
# of which ccache tells the compiler, from the build folder.
target_compile_options(smp_flags INTERFACE -Wall -Wextra "-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=")
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # It takes joined sources for headers, which should not use anonymous namespaces; and some of what it inlines
  # across them looks to it as if it were read before it is written.
  target_compile_options(smp_flags INTERFACE -Wno-subobject-linkage -Wno-maybe-uninitialized)
  # Of what a joined file takes a compiler, a twelfth is to look for memory to use again, of which it has enough.
  target_compile_options(smp_flags INTERFACE "SHELL:--param ggc-min-heapsize=1500000")
endif()
if(SMP_SANITIZE)
  target_compile_options(smp_flags INTERFACE
    -fsanitize=${SMP_SANITIZE} -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(smp_flags INTERFACE -fsanitize=${SMP_SANITIZE})
  if(SMP_SANITIZE MATCHES thread)
    # Its list of calls is that of a thread, and fibers leave functions in another order than they entered them.
    target_compile_options(smp_flags INTERFACE --param=tsan-instrument-func-entry-exit=0)
  endif()
endif()
