// The load of a whole file in the background, for lookups that go all over it.  Under the Prefetcher's lock.
#pragma once

#include <cstdint>

#include "lmdbio/cache/chunk_cache.h"
#include "lmdbio/cache/read_job.h"

namespace lmdbio::cache {

/// A load of `file`, of which a database uses `used_bytes`, is to begin.  False: none is worth it, or there
/// were enough; true: `file.load` tells where it goes.
bool plan_whole_load(FileCache& file, std::uint64_t used_bytes, const MemoryBudget& budget) noexcept;
/// Its next chunk, of any file's load.  As Schedule::next().
bool next_of_loads(ChunkCache& chunks, ReadJob& job, bool idle);
/// A chunk of a load is done with.  `good`: it is where it was to be.
void whole_load_went_on(FileCache& file, const ChunkJob& job, bool good) noexcept;

}  // namespace lmdbio::cache
