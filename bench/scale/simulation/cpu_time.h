// CPU time of a simulated rank.
#pragma once

#include <simgrid/s4u.hpp>
#include <utility>

#include "bench/scale/simulation/platform.h"

namespace lmdbio::bench {

/// Accumulates the CPU time that a rank spends, because each sleep takes time to simulate.  The rank sleeps
/// for the accumulated time when it reaches kMuch, and in settle().  Call settle() before the rank reads the
/// clock or waits.  Only this rank may call the functions.
class CpuTime {
 public:
  explicit CpuTime(const CpuCosts& costs) : costs_(costs) {}
  const CpuCosts& costs() const noexcept { return costs_; }
  void spend(double seconds) {
    spent_s_ += seconds;
    if (spent_s_ >= kMuch) settle();
  }
  void settle() {
    if (spent_s_ > 0) simgrid::s4u::this_actor::sleep_for(std::exchange(spent_s_, 0));
  }

 private:
  static constexpr double kMuch = 100e-6;
  const CpuCosts costs_;
  double spent_s_ = 0;
};

}  // namespace lmdbio::bench
