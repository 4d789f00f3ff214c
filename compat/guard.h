// Wraps slow entry points: no exception leaves them, and errno is preserved.
#pragma once

#include <lmdb.h>

#include <cerrno>
#include <new>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/log.h"
#include "lmdbio/base/status.h"
#include "lmdbio/base/uncancelled.h"

namespace lmdbio::compat {

/// Converts the return code of an LMDB function.
inline Status as_status(int rc) noexcept {
  return rc == 0 ? Status() : rc > 0 ? Status::from_errno(rc) : Status::from_mdb(rc);
}

/// Runs `body`, which returns a Status, and returns its code.  Meanwhile cancellation and signal handlers are
/// deferred; put slow code inside AsyncSignalsAllowed.  `body` must not call a user's comparator, which may
/// throw or longjmp, as in stock.  An exception becomes ENOMEM (bad_alloc), else MDB_PANIC.
template <class Body>
int guarded(Body&& body) noexcept {
  const int saved = errno;
  const Uncancelled wait;
  const AsyncSignalsBlocked fork_safe;
  int rc = MDB_PANIC;
  try {
    rc = body().raw();
  } catch (const std::bad_alloc&) {
    rc = ENOMEM;
  } catch (...) {
    log_line(LogLevel::error, "internal error: an exception reached the C boundary");
  }
  errno = saved;
  return rc;
}

}  // namespace lmdbio::compat
