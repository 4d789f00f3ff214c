// Verifies the checksums of all images in a directory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lmdbio/cache/directory.h"

namespace lmdbio::cache {

struct DamagedImage {
  std::string name;
  std::string path;                   ///< of the database; empty: not known
  bool removed = false;               ///< its table was damaged, so all of it was removed
  std::vector<std::uint64_t> chunks;  ///< that were damaged, and are missing now
};

struct Verified {
  std::uint64_t images = 0, chunks = 0, bytes = 0;  ///< that were verified
  std::vector<DamagedImage> damaged;
  bool stopped = false;  ///< by progress()
};

/// Verifies each chunk that the tables list.  Reads the disk, not the page cache, where that is possible.
/// Damaged chunks become missing, so that they are read again from the database.  A process that has mapped a
/// complete image goes on using it.  Processes may read and fill the images meanwhile.  Ends early if
/// progress(context, done bytes, total bytes) returns false.  May throw bad_alloc.
Verified verify(const Directory& directory, bool (*progress)(void*, std::uint64_t, std::uint64_t) noexcept,
                void* context);

}  // namespace lmdbio::cache
