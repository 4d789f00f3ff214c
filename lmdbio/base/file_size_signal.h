// Writes of this library to files under RLIMIT_FSIZE (ulimit -f).
#pragma once

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <cerrno>

namespace lmdbio {

/// While it lives, calls of this thread that would make a file larger than RLIMIT_FSIZE allows fail with
/// EFBIG.  Without it, the kernel would also send SIGXFSZ, which ends the program.  errno preserved.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal() noexcept {
    (void)::sigemptyset(&signal_);
    (void)::sigaddset(&signal_, SIGXFSZ);
    (void)::pthread_sigmask(SIG_BLOCK, &signal_, &before_);
    sigset_t pending;
    programs_ = ::sigpending(&pending) == 0 && ::sigismember(&pending, SIGXFSZ) == 1;
  }
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;
  NoFileSizeSignal& operator=(const NoFileSizeSignal&) = delete;
  ~NoFileSizeSignal() {
    const int saved = errno;
    constexpr timespec kNow{0, 0};
    if (!programs_)
      while (::sigtimedwait(&signal_, nullptr, &kNow) < 0 && errno == EINTR) {
      }
    (void)::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = saved;
  }

 private:
  sigset_t signal_, before_;
  bool programs_;  ///< a signal was pending before
};

}  // namespace lmdbio
