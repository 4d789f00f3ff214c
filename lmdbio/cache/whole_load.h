// The load of a whole file in the background.  Under the Prefetcher's lock.
#pragma once

#include <cstdint>

#include "lmdbio/cache/chunk_cache.h"
#include "lmdbio/cache/read_job.h"

namespace lmdbio::cache {

/// Where a load of `file`, of which a database uses `used_bytes`, would go.  None: it fits nowhere.
ReadPath whole_load_path(const FileCache& file, std::uint64_t used_bytes,
                         const MemoryBudget& budget) noexcept;
void begin_whole_load(FileCache& file, std::uint64_t used_bytes, ReadPath path) noexcept;
/// Its next chunk, of any file's load.  As Schedule::next().
bool next_of_loads(ChunkCache& chunks, ReadJob& job, bool idle);
/// A chunk of a load is done with.  `good`: it is where it was to be.
void whole_load_went_on(FileCache& file, const ChunkJob& job, bool good) noexcept;

}  // namespace lmdbio::cache
