// The load of a whole file in the background.  All functions are called under the Prefetcher's lock.
#pragma once

#include <cstdint>

#include "lmdbio/window/chunk_cache.h"
#include "lmdbio/window/read_job.h"

namespace lmdbio::window {

/// Returns the path by which a load would read `file`.  `used_bytes`: the part that the database uses.
/// Returns ReadPath::none if the file fits nowhere.
ReadPath whole_load_path(const WindowFile& file, std::uint64_t used_bytes,
                         const gather::MemoryBudget& budget) noexcept;
/// Begins a load of the first `used_bytes` of `file`.  `path` is the result of whole_load_path().
void begin_whole_load(WindowFile& file, std::uint64_t used_bytes, ReadPath path) noexcept;
/// Returns the next chunk to read for the load of some file.  Arguments, result and errors as
/// Schedule::next().
bool next_of_loads(ChunkCache& chunks, ReadJob& job, bool idle);
/// Records that a load's read of a chunk has ended.  `good`: the chunk is now in the place that the load's
/// path names.
void whole_load_went_on(WindowFile& file, const ChunkJob& job, bool good) noexcept;

}  // namespace lmdbio::window
