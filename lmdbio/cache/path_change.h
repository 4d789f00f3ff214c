// Facts change while a file is read through the page cache: memory goes, or what is brought there vanishes.
// Then the file is read directly from there on, and never back.
#pragma once

#include <cstdint>

#include "lmdbio/cache/file_cache.h"

namespace lmdbio::cache {

/// Once in 64 MiB of fills: whether there is still room for the file in the page cache.  Under the
/// Prefetcher's lock.  `limit`: of private memory.
void check_memory(FileCache& file, std::uint64_t limit) noexcept;

/// Whether a chunk that was brought into the page cache is there still: the share of a sample of it.  None:
/// that is of no interest, or nothing tells.  Without the lock: the question may go to another thread.
std::optional<double> filled_share(const FileCache& file, ChunkIndex chunk) noexcept;
/// What filled_share() said.  Under the lock.
void note_filled(FileCache& file, ChunkIndex chunk, double share, std::uint64_t limit) noexcept;

}  // namespace lmdbio::cache
