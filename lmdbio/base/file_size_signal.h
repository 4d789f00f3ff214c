// Keeps writes of this library from raising SIGXFSZ at the limit RLIMIT_FSIZE (ulimit -f).
#pragma once

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <cerrno>

namespace lmdbio {

/// Blocks SIGXFSZ in the calling thread while the object lives.  A call that would make a file larger than
/// RLIMIT_FSIZE allows then only fails with EFBIG.  Otherwise the kernel would also send SIGXFSZ, which ends
/// the program.  errno preserved.
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
  bool programs_;  ///< a SIGXFSZ of the program was pending before
};

}  // namespace lmdbio
