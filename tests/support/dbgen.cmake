# Generated databases for tests and fuzzing; calls any liblmdb through a table of functions.
add_library(lmdbio_dbgen STATIC
  ${CMAKE_CURRENT_LIST_DIR}/dbgen.cc
  ${CMAKE_CURRENT_LIST_DIR}/format_10.cc
  ${CMAKE_CURRENT_LIST_DIR}/lmdb_api.cc
  ${CMAKE_CURRENT_LIST_DIR}/page_size.cc)
target_link_libraries(lmdbio_dbgen PUBLIC lmdbio_flags ${CMAKE_DL_LIBS})
# liblmdb must find the program's sysconf before libc's (page_size.h).
target_link_options(lmdbio_dbgen INTERFACE LINKER:--export-dynamic-symbol=sysconf)
