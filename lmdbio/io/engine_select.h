// Selects the engine that reads a file: the best one that works here.
#pragma once

#include <memory>

#include "lmdbio/base/config.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/io/file.h"
#include "lmdbio/io/io_engine.h"

namespace lmdbio {

enum class EngineKind : unsigned char {
  automatic,
  uring,  // kinds are ordered, the best first
  threads,
  pread,
  populate,         ///< as threads, but into the page cache only (PageFiller); no fallback
  populate_copied,  ///< as populate, and also to the destination
  single,           ///< one read at a time, which its caller waits for (SingleEngine); no fallback
  single_unread,    ///< as single, but into the page cache only
};
/// Returns the kind that LMDBIO_ENGINE selects.
EngineKind engine_kind(IoEngineChoice choice) noexcept;

/// Makes an engine for `file`, which must outlive it: the wanted kind, or the next one after it that is
/// available.  `automatic` starts with the first kind.  pread needs only memory, and has a queue depth of 1.
/// `name` (may be null) receives the kind's name, a constant.  Logs one line per process at level info,
/// which names the kind and tells why better ones are not available.  Errors: ENOMEM; EINVAL for depth 0;
/// EBADF if the descriptor of a kept file is not available; others as populate_engine().  Any thread.
Result<std::unique_ptr<IoEngine>> select_engine(const File& file, unsigned depth, EngineKind wanted,
                                                const char** name) noexcept;
/// As select_engine(), in a thread that can use the file's descriptor.  `results`: null, or an event count
/// that the caller waits for.  If it is not null, engines with threads notify it when results have come, and
/// have no ready_fd().
Result<std::unique_ptr<IoEngine>> select_engine_here(const File& file, unsigned depth, EngineKind wanted,
                                                     const char** name, EventCount* results) noexcept;

}  // namespace lmdbio
