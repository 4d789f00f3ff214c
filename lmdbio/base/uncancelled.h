// Protects a thread from cancellation.
#pragma once

#include <pthread.h>

namespace lmdbio {

/// Disables cancellation of the calling thread while the object lives.  Cancellation unwinds the stack, and
/// unwinding through a catch-all or a noexcept frame would abort the program.
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
