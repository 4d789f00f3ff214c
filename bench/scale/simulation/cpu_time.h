// CPU time of a simulated rank.
#pragma once

#include <algorithm>
#include <simgrid/s4u.hpp>
#include <utility>

#include "bench/scale/simulation/platform.h"
#include "bench/scale/simulation/run_queue.h"

namespace lmdbio::bench {

/// Accumulates the CPU time that a rank spends, because each sleep takes time to simulate.  The rank waits
/// for a core and sleeps for the accumulated time when it reaches kMuch, and in settle().  Call settle()
/// before the rank reads the clock or waits.  Only this rank may call the functions.
class CpuTime {
 public:
  /// `cores` are those of the rank's node, and must outlive this object.
  CpuTime(const CpuCosts& costs, RunQueue& cores) : costs_(costs), cores_(cores) {}
  const CpuCosts& costs() const noexcept { return costs_; }
  void spend(double seconds) {
    spent_s_ += seconds;
    if (spent_s_ >= kMuch) settle();
  }
  /// The rank waited until now, and is runnable at the time `seconds`.
  void wake(double seconds) noexcept { awake_at_ = seconds; }
  void settle() {
    const double now = simgrid::s4u::Engine::get_clock(), from = std::max(now, awake_at_);
    if (spent_s_ == 0 && from == now) return;
    simgrid::s4u::this_actor::sleep_for(cores_.run(from, std::exchange(spent_s_, 0)) - now);
  }

 private:
  static constexpr double kMuch = 100e-6;
  const CpuCosts costs_;
  RunQueue& cores_;
  double awake_at_ = 0;
  double spent_s_ = 0;
};

}  // namespace lmdbio::bench
