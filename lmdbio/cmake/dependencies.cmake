# What the build needs, looked for all at once: one message names what is missing, and what Debian calls it.
set(lmdbio_missing "")
set(lmdbio_missing_packages "")
macro(lmdbio_needs what package)
  # Found if each of these is true.
  foreach(found ${ARGN})
    if(NOT ${found})
      list(APPEND lmdbio_missing "${what}")
      list(APPEND lmdbio_missing_packages ${package})
      break()
    endif()
  endforeach()
endmacro()

find_path(LMDB_INCLUDE_DIR lmdb.h)  # the header alone: the shim never links liblmdb
lmdbio_needs("lmdb.h" liblmdb-dev LMDB_INCLUDE_DIR)
find_package(Boost 1.70 QUIET)  # headers alone: Outcome
lmdbio_needs("the headers of Boost (1.70 or later)" libboost-dev Boost_FOUND)
find_path(LMDBIO_XXHASH_INCLUDE_DIR xxhash.h)  # header alone: checksums of record indexes
lmdbio_needs("xxhash.h" libxxhash-dev LMDBIO_XXHASH_INCLUDE_DIR)
if(LMDBIO_URING)
  # Static: the shim, which is preloaded into any program, needs nothing but libc.
  find_path(LMDBIO_URING_INCLUDE_DIR liburing.h)
  find_library(LMDBIO_URING_LIBRARY liburing.a)
  lmdbio_needs("liburing.a (or -DLMDBIO_URING=OFF)" liburing-dev LMDBIO_URING_INCLUDE_DIR LMDBIO_URING_LIBRARY)
endif()
if(LMDBIO_COMMAND)
  find_package(CLI11 QUIET)
  lmdbio_needs("CLI11 (or -DLMDBIO_COMMAND=OFF)" libcli11-dev CLI11_FOUND)
  find_package(nlohmann_json QUIET)
  lmdbio_needs("nlohmann_json (or -DLMDBIO_COMMAND=OFF)" nlohmann-json3-dev nlohmann_json_FOUND)
endif()
if(LMDBIO_TESTS)
  find_package(GTest QUIET)
  lmdbio_needs("GoogleTest (or -DLMDBIO_TESTS=OFF)" "libgtest-dev;libgmock-dev" GTest_FOUND)
endif()
find_package(Threads REQUIRED)
if(LMDBIO_MPI)
  find_package(MPI QUIET COMPONENTS C)
endif()

if(lmdbio_missing)
  list(JOIN lmdbio_missing "\n  " lmdbio_missing)
  list(JOIN lmdbio_missing_packages " " lmdbio_missing_packages)
  message(FATAL_ERROR "Missing:\n  ${lmdbio_missing}\nOn Debian or Ubuntu:\n"
    "  sudo apt-get install -y --no-install-recommends ${lmdbio_missing_packages}\n")
endif()
