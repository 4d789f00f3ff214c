// The io_uring engine, for Linux 5.4 and later.
#pragma once

#include <memory>

#include "lmdbio/io/file.h"
#include "lmdbio/io/io_engine.h"

namespace lmdbio {

/// Makes an engine with `depth` reads in flight through a ring of its own.  `file` must outlive it.  A
/// forked child does not inherit the ring's memory, and an executed program does not inherit its
/// descriptor.  The destructor waits for the reads in flight.  If io_uring_enter(2) is refused later, for
/// example by a new seccomp filter, reap() returns that error.
///
/// Errors: ENOSYS if this build or kernel has no io_uring; EPERM if io_uring is forbidden; ENOMEM if memory
/// is short, or the limit on locked memory is reached (before Linux 5.12); EINVAL if `depth` is 0 or more
/// than the kernel allows; EMFILE if more than half of the descriptors of the private table are in use.
Result<std::unique_ptr<IoEngine>> uring_engine(const File& file, unsigned depth) noexcept;

}  // namespace lmdbio
