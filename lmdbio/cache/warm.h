// Fills an image with all chunks of its database.
#pragma once

#include <cstdint>

#include "lmdbio/base/status.h"
#include "lmdbio/cache/image.h"

namespace lmdbio::cache {

/// What warm() did.
struct Warmed {
  std::uint64_t chunks_before = 0;  ///< were in the image
  std::uint64_t chunks_added = 0;   ///< have come since, by this process or another
  std::uint64_t bytes_before = 0, bytes_added = 0;
  std::uint64_t bytes_read = 0;  ///< from the database file
  Status failed;                 ///< of the first read that failed
};

/// Reads the chunks that the image lacks from the database, with several requests in flight, and adds them.
/// Chunks of an earlier boot are verified.  Ends early if there is no room, if the image takes no more, if a
/// read fails, or if progress(context, done bytes, total bytes) returns false.  progress() is called in
/// several threads.  Any number of processes may do this at once.
Warmed warm(Image& image, bool (*progress)(void*, std::uint64_t, std::uint64_t) noexcept,
            void* context) noexcept;

}  // namespace lmdbio::cache
