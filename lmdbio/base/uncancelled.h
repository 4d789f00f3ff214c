// Protects a thread from cancellation.
#pragma once

#include <pthread.h>

namespace lmdbio {

/// Disables cancellation of the thread while it lives.  Forced unwinding through a catch-all or a noexcept
/// frame would abort the program.
class Uncancelled {
 public:
  Uncancelled() noexcept { (void)::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  Uncancelled(const Uncancelled&) = delete;
  Uncancelled& operator=(const Uncancelled&) = delete;
  ~Uncancelled() { (void)::pthread_setcancelstate(before_, nullptr); }

 private:
  int before_ = 0;
};

}  // namespace lmdbio
