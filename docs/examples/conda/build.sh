#!/bin/bash
# Run by conda build; meta.yaml says more.  LMDBIO_URING=OFF: conda-forge has no liburing.a, so LMDBIO reads with threads.
set -eu

# shellcheck disable=SC2086  # a list
cmake ${CMAKE_ARGS:-} -S "$SRC_DIR" -B "$SRC_DIR/build/conda" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_INSTALL_PREFIX="$PREFIX" -DCMAKE_INSTALL_LIBDIR=lib -DPython_EXECUTABLE="$PYTHON" \
  -DLMDBIO_PYTHON_DIR="lib/python$PY_VER/site-packages/lmdbio" \
  -DLMDBIO_TESTS=OFF -DLMDBIO_BENCH=OFF -DLMDBIO_URING=OFF -DLMDBIO_MPI=OFF -DLMDBIO_FUSE=OFF
cmake --build "$SRC_DIR/build/conda" -j "${CPU_COUNT:-1}"
cmake --install "$SRC_DIR/build/conda" --strip

# Stock LMDB: conda-forge's library is called liblmdb.so.
mkdir -p "$PREFIX/lib/lmdbio/stock"
ln -sf ../../liblmdb.so "$PREFIX/lib/lmdbio/stock/liblmdb.so.0"
