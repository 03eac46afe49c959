# Installs the library, its headers, the tool, and the package that find_package(smp) reads.

if(NOT TARGET smp)
  return()
endif()
include(CMakePackageConfigHelpers)
set(SMP_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/smp)

# Before anything is copied: whoever built only the demo or the tests lacks some of it.
set(SMP_INSTALLED_TARGETS smp)
if(TARGET smp-cli)
  list(APPEND SMP_INSTALLED_TARGETS smp-cli)
endif()
list(JOIN SMP_INSTALLED_TARGETS " " targets)
foreach(target IN LISTS SMP_INSTALLED_TARGETS)
  install(CODE "
    if(NOT EXISTS \"$<TARGET_FILE:${target}>\")
      message(FATAL_ERROR \"Nothing was installed: ${target} is not built yet. Either ./smp install PREFIX builds \"
        \"what is needed, or: cmake --build \\\"${PROJECT_BINARY_DIR}\\\" --target ${targets}\")
    endif()")
endforeach()

install(TARGETS smp EXPORT smp-targets FILE_SET HEADERS)
install(EXPORT smp-targets NAMESPACE smp:: DESTINATION ${SMP_PACKAGE_DIR})
foreach(plugin smp_sentencepiece smp_arrow)
  if(TARGET ${plugin})
    install(TARGETS ${plugin} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})  # beside the library, which looks there
  endif()
endforeach()
if(TARGET smp-cli)
  # The library's name is taken, so only the installed tool has it too.
  install(PROGRAMS $<TARGET_FILE:smp-cli> DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME smp)
endif()

configure_package_config_file(cmake/smp-config.cmake.in smp-config.cmake
  INSTALL_DESTINATION ${SMP_PACKAGE_DIR})
write_basic_package_version_file(smp-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${CMAKE_CURRENT_BINARY_DIR}/smp-config.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/smp-config-version.cmake
  cmake/smp_torch.cmake
  DESTINATION ${SMP_PACKAGE_DIR})
