// Which engine reads a file: the best that works here.
#pragma once

#include <memory>

#include "lmdbio/base/config.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/io/file.h"
#include "lmdbio/io/io_engine.h"

namespace lmdbio {

enum class EngineKind : unsigned char {
  automatic,
  uring,  // the better ones first
  threads,
  pread,
  populate,  ///< bytes come into the page cache, not to where they are asked for: see PageFiller; no other
             ///< instead
  populate_copied,  ///< as populate, and to where they are asked for
  single,           ///< one read at a time, which its caller waits for: see SingleEngine; no other instead
  single_unread,    ///< likewise; bytes come into the page cache and nowhere else
};
/// That of LMDBIO_ENGINE.
EngineKind engine_kind(IoEngineChoice choice) noexcept;

/// An engine for `file`, which outlives it: the wanted kind or, where that cannot be had, the next after it
/// that can; `automatic` begins with the first.  pread needs nothing but memory, and has depth 1.  `name`
/// (may be null) gets the kind's name, a constant.  A line at level info, once in a process, tells which it
/// is and why not a better one.  Errors: ENOMEM; EINVAL for depth 0.  Any thread.
Result<std::unique_ptr<IoEngine>> select_engine(const File& file, unsigned depth, EngineKind wanted,
                                                const char** name) noexcept;
/// The same in a thread that can use the file's descriptor.  `results`: not null if the caller waits for it
/// to change: threads count there when something has come, and have no ready_fd().
Result<std::unique_ptr<IoEngine>> select_engine_here(const File& file, unsigned depth, EngineKind wanted,
                                                     const char** name, EventCount* results) noexcept;

}  // namespace lmdbio
