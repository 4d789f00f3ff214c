// CPUs of a simulated node.
#pragma once

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <vector>

namespace lmdbio::bench {

/// Cores, each of which works for one process at a time.  A process waits for a free core in the order of the
/// calls.  Processes get shares as of a fair scheduler if they call run() for short times (CpuTime).  One
/// thread.
class RunQueue {
 public:
  /// `wake_s`: time for which the kernel works to wake one process.  Throws std::invalid_argument.
  RunQueue(unsigned cores, double wake_s) : free_at_(cores, 0.0), wake_s_(wake_s) {
    if (cores == 0) throw std::invalid_argument("cores: at least 1");
  }

  /// A process that is runnable from the time `from` on needs a core for `seconds`.  Returns when it has
  /// worked for so long.
  double run(double from, double seconds) {
    // The core that has been free for the shortest time, so that no core stays free without need; otherwise
    // the one that is free first.
    double* best = &free_at_[0];
    for (double& core : free_at_) {
      const bool is_free = core <= from, best_is_free = *best <= from;
      if (is_free != best_is_free ? is_free : is_free ? core > *best : core < *best) best = &core;
    }
    *best = std::max(*best, from) + seconds;
    return *best;
  }
  /// The kernel wakes a process at the time `now`, after all that it has to wake already.  Returns when the
  /// process is runnable.
  double wake(double now) {
    if (wake_s_ == 0) return now;
    waker_at_ = run(std::max(waker_at_, now), wake_s_);
    return waker_at_;
  }

 private:
  std::vector<double> free_at_;  ///< of each core
  const double wake_s_;
  double waker_at_ = 0;  ///< when the last process is awake
};

}  // namespace lmdbio::bench
