// What the CPU of a simulated rank takes.
#pragma once

#include <simgrid/s4u.hpp>
#include <utility>

#include "bench/scale/simulation/platform.h"

namespace lmdbio::bench {

/// The rank sleeps for what it has spent, once that is much, or when somebody wants to know the time or to
/// wait: each sleep takes time to simulate.  The rank that it belongs to calls it.
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
