// Simulated time.  A simulator and the tests implement it.
#pragma once

#include <functional>

namespace lmdbio::bench {

/// One thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual double seconds() const = 0;
  /// Calls `what` at the time `seconds`, which must not be in the past.  Functions for the same time are
  /// called in the order in which they were passed to at().
  virtual void at(double seconds, std::function<void()> what) = 0;
};

}  // namespace lmdbio::bench
