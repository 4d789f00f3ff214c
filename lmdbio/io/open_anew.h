// The descriptors that one file is read by, opened in an order that costs its page cache least.
#pragma once

#include <optional>

#include "lmdbio/base/result.h"
#include "lmdbio/io/file.h"

namespace lmdbio {

struct OpenedAnew {
  File buffered;
  bool own = false;            ///< `buffered` is an open file of its own: no duplicate
  std::optional<File> direct;  ///< File::Kind::direct
  std::optional<File> exact;   ///< File::Kind::exact
  /// Each open of the file drops what the page cache has of it, the program's own opens as well: FUSE without
  /// FOPEN_KEEP_CACHE, which is GlusterFS's default.
  bool drops_cache = false;
};

struct WhatToOpen {
  bool direct = false, exact = false;
};

/// The file of `origin` opened anew in the private table.  Whether opens drop its page cache is found out on
/// FUSE alone, once a file and process, by the open that is made anyway; where they do, no more is opened
/// than `direct`.  Errors: as File::keep.
Result<OpenedAnew> open_anew(const Origin& origin, WhatToOpen what) noexcept;

}  // namespace lmdbio
