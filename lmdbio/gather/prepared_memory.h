// Functions of liblmdbio.so through which the Python module counts its batches in the process's memory.
#pragma once

#include <cstdint>

extern "C" {
/// Takes `bytes` bytes for batches that are prepared ahead (MemoryUse::prepared).  Returns 0, or ENOMEM if
/// there is no room.  If LMDBIO_MEMORY is 0, counts nothing and returns 0.  Any thread.
int lmdbio_take_prepared(std::uint64_t bytes);
/// Gives back `bytes` bytes.  Does nothing in a forked child that has taken none.  Any thread.
void lmdbio_give_back_prepared(std::uint64_t bytes);
}
