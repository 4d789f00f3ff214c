// The descriptors that one file is read by, opened in an order that costs its page cache least.
#pragma once

#include <optional>

#include "lmdbio/base/result.h"
#include "lmdbio/io/file.h"

namespace lmdbio {

struct OpenedAnew {
  File buffered;
  bool own = false;            ///< `buffered` is an open file of its own: no duplicate
  std::optional<File> direct;  ///< as File::reopen_direct
  std::optional<File> exact;   ///< as reopen_for_exact
  /// Each open of the file drops what the page cache has of it, the program's own opens as well: FUSE without
  /// FOPEN_KEEP_CACHE, which is GlusterFS's default.
  bool drops_cache = false;
};

struct WhatToOpen {
  bool direct = false, exact = false;
};

/// `fd`'s file opened anew.  Whether opens drop its page cache is found out on FUSE alone, once a file and
/// process, by the open that is made anyway; where they do, no more is opened than `direct`.  An error: it
/// cannot even be duplicated.
Result<OpenedAnew> open_anew(int fd, WhatToOpen what) noexcept;

}  // namespace lmdbio
