// The engine for Linux 5.4 and later: io_uring.
#pragma once

#include <memory>

#include "lmdbio/io/file.h"
#include "lmdbio/io/io_engine.h"

namespace lmdbio {

/// `depth` reads in flight through a ring of its own; the File outlives it.  The ring's memory is not
/// inherited by a fork, its descriptor not by exec.  The destructor waits for the reads in flight.  reap
/// gives what io_uring_enter(2) refuses (a filter set later) as its error.
///
/// Errors: ENOSYS without io_uring in this build or kernel, EPERM where it is forbidden, ENOMEM (also by the
/// limit on locked memory, before Linux 5.12), EINVAL for a depth of 0 or above what the kernel allows.
Result<std::unique_ptr<IoEngine>> uring_engine(const File& file, unsigned depth) noexcept;

}  // namespace lmdbio
