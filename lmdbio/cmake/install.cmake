# What `cmake --install` installs: both libraries, the headers, lmdbio.pc, the CMake package, the command.
set(LMDBIO_SONAME_DIR ${CMAKE_INSTALL_LIBDIR}/lmdbio)
set(LMDBIO_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/lmdbio)
set(LMDBIO_PC_DIR ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
# From lmdbio.pc back to the prefix, so that an installed tree can be moved.
file(RELATIVE_PATH LMDBIO_PC_PREFIX /${LMDBIO_PC_DIR} /)
string(REGEX REPLACE "/$" "" LMDBIO_PC_PREFIX "${LMDBIO_PC_PREFIX}")

target_include_directories(lmdbio INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/lmdbio/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
# No standard of C++: lmdbio/lmdbio.h is C99, and programs that use it may not compile with C++20 (Caffe).
# lmdbio/reader.h says which one it needs.
install(TARGETS lmdbio EXPORT lmdbioTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime)
install(TARGETS lmdbio_soname LIBRARY DESTINATION ${LMDBIO_SONAME_DIR} COMPONENT runtime)
lmdbio_split_debug(lmdbio ${CMAKE_INSTALL_LIBDIR})
lmdbio_split_debug(lmdbio_soname ${LMDBIO_SONAME_DIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/lmdbio/include/lmdbio DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT development FILES_MATCHING PATTERN "*.h" PATTERN "mpi*.h" EXCLUDE)
install(EXPORT lmdbioTargets NAMESPACE lmdbio:: DESTINATION ${LMDBIO_PACKAGE_DIR} COMPONENT development)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/lmdbioConfig.cmake.in
  ${PROJECT_BINARY_DIR}/package/lmdbioConfig.cmake INSTALL_DESTINATION ${LMDBIO_PACKAGE_DIR}
  PATH_VARS LMDBIO_SONAME_DIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/lmdbioConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_file(${CMAKE_CURRENT_LIST_DIR}/lmdbio.pc.in ${PROJECT_BINARY_DIR}/package/lmdbio.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/package/lmdbioConfig.cmake ${PROJECT_BINARY_DIR}/package/lmdbioConfigVersion.cmake
  DESTINATION ${LMDBIO_PACKAGE_DIR} COMPONENT development)
install(FILES ${PROJECT_BINARY_DIR}/package/lmdbio.pc DESTINATION ${LMDBIO_PC_DIR} COMPONENT development)

# liblmdbio_mpi.so, with all that programs need to use it.
if(TARGET lmdbio_mpi)
  set_target_properties(lmdbio_mpi PROPERTIES EXPORT_NAME mpi)
  install(TARGETS lmdbio_mpi EXPORT lmdbioMpiTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT mpi)
  lmdbio_split_debug(lmdbio_mpi ${CMAKE_INSTALL_LIBDIR})
  install(FILES ${PROJECT_SOURCE_DIR}/lmdbio/include/lmdbio/mpi.h ${PROJECT_SOURCE_DIR}/lmdbio/include/lmdbio/mpi_reader.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lmdbio COMPONENT mpi)
  install(EXPORT lmdbioMpiTargets NAMESPACE lmdbio:: DESTINATION ${LMDBIO_PACKAGE_DIR} COMPONENT mpi)
  # Of the MPI that it was built with.
  include(CheckSymbolExists)
  set(CMAKE_REQUIRED_INCLUDES ${MPI_C_INCLUDE_DIRS})
  check_symbol_exists(OMPI_MAJOR_VERSION mpi.h LMDBIO_OPEN_MPI)
  unset(CMAKE_REQUIRED_INCLUDES)
  set(LMDBIO_MPI_PC mpich)
  if(LMDBIO_OPEN_MPI)
    set(LMDBIO_MPI_PC ompi-c)
  endif()
  configure_file(${CMAKE_CURRENT_LIST_DIR}/lmdbio-mpi.pc.in ${PROJECT_BINARY_DIR}/package/lmdbio-mpi.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/package/lmdbio-mpi.pc DESTINATION ${LMDBIO_PC_DIR} COMPONENT mpi)
endif()

if(TARGET lmdbio_serve)
  install(TARGETS lmdbio_serve RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT mpi)
endif()

if(TARGET lmdbio_fuse)
  install(TARGETS lmdbio_fuse RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT fuse)
endif()

if(TARGET lmdbio_command)
  install(TARGETS lmdbio_command lmdbio_files_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
  install(FILES ${PROJECT_SOURCE_DIR}/lmdbio/cli/lmdbio.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT runtime)
  install(FILES ${PROJECT_SOURCE_DIR}/lmdbio/cli/lmdbio.bash
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME lmdbio COMPONENT runtime)
endif()
