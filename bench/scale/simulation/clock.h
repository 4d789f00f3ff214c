// Simulated time.  A simulator implements it; so do tests.
#pragma once

#include <functional>

namespace lmdbio::bench {

/// One thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual double seconds() const = 0;
  /// Calls `what` at a time that is not before seconds().  Of what comes at one time, what was asked for
  /// first comes first.
  virtual void at(double seconds, std::function<void()> what) = 0;
};

}  // namespace lmdbio::bench
