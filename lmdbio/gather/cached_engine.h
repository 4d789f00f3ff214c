// Engines that read a database file through other sources: its image in the cache on local disk, and the
// server of the node.
#pragma once

#include <memory>

#include "lmdbio/cache/image.h"
#include "lmdbio/gather/queues.h"
#include "lmdbio/gather/served_file.h"

namespace lmdbio::gather {

/// What has bytes of a database file besides the file itself.
struct Sources {
  std::shared_ptr<cache::Image> image;  ///< or null
  std::shared_ptr<ServedFile> served;   ///< or null
  explicit operator bool() const noexcept { return image != nullptr || served != nullptr; }
};

/// Returns a function that makes engines for a database file which read from the image what it has, from the
/// server what it brings, and everything else from the file.  They offer the image what it does not have.
/// Reads into the page cache read the file, and only offer.  `buffered_copies`: the users of engines for
/// buffered reads need the bytes; otherwise these engines are for reads into the page cache.  May throw
/// bad_alloc.
MakeEngine cached_engines(Sources sources, bool buffered_copies);

}  // namespace lmdbio::gather
