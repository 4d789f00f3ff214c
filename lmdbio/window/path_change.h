// Changes a file from the page cache to direct reads, for good.  This happens if free memory becomes short,
// or if pages are evicted from the page cache before they are used.
#pragma once

#include <cstdint>

#include "lmdbio/window/window_file.h"

namespace lmdbio::window {

/// Checks whether there is still room for the file in the page cache, once for each 64 MiB read into it.  If
/// not, changes the file to direct reads.  Under the Prefetcher's lock.  `limit`: upper limit on private
/// memory, in bytes.
void check_memory(WindowFile& file, std::uint64_t limit) noexcept;

/// Returns how much of a chunk that was read into the page cache is still there, from 0 to 1, estimated from
/// a sample.  Returns nullopt if the file is read in another way or residency cannot be determined.  Called
/// without the lock, because another thread may have to make the system call.
std::optional<double> filled_share(const WindowFile& file, ChunkIndex chunk) noexcept;
/// Records a result of filled_share().  Changes the file to direct reads if the page cache loses too much of
/// what is read into it.  Under the lock.  `limit`: upper limit on private memory, in bytes.
void note_filled(WindowFile& file, ChunkIndex chunk, double share, std::uint64_t limit) noexcept;

}  // namespace lmdbio::window
