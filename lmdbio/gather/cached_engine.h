// Engines that read a database file through its image in the cache on local disk.
#pragma once

#include <memory>

#include "lmdbio/cache/image.h"
#include "lmdbio/gather/queues.h"

namespace lmdbio::gather {

/// Returns a function that makes engines for a database file which read from `image` what it has, and offer
/// it what they read from the file.  Reads into the page cache only offer.  `buffered_copies`: the users of
/// engines for buffered reads need the bytes; otherwise these engines are for reads into the page cache.  May
/// throw bad_alloc.
MakeEngine cached_engines(std::shared_ptr<cache::Image> image, bool buffered_copies);

}  // namespace lmdbio::gather
