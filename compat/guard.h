// The frame around slow entry points: nothing is thrown past it, and errno is left as found.
#pragma once

#include <lmdb.h>
#include <pthread.h>

#include <cerrno>
#include <new>

#include "lmdbio/base/log.h"
#include "lmdbio/base/status.h"

namespace lmdbio::compat {

/// Runs `body`, which returns a Status.  Cancellation waits meanwhile: forced unwinding through a catch-all
/// would abort the program.  Never around a user's comparator, which may throw or longjmp as through stock.
template <class Body>
int guarded(Body&& body) noexcept {
  const int saved = errno;
  int cancel = 0;
  (void)::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
  int rc = MDB_PANIC;
  try {
    rc = body().raw();
  } catch (const std::bad_alloc&) {
    rc = ENOMEM;
  } catch (...) {
    log_line(LogLevel::error, "internal error: an exception reached the C boundary");
  }
  (void)::pthread_setcancelstate(cancel, nullptr);
  errno = saved;
  return rc;
}

}  // namespace lmdbio::compat
