// The order in which all ranks together use the records of an epoch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace lmdbio::bench {

enum class Order : unsigned char {
  sequential,
  shuffled  ///< a different order in each epoch, the same on all ranks
};

/// One thread.
class Sequence {
 public:
  Sequence() = default;
  Sequence(Order order, std::uint64_t records) : order_(order), records_(records) {}

  /// Returns the ordinal of element `i` of an epoch.  Fast for two consecutive epochs at a time.
  std::uint64_t ordinal(std::uint64_t epoch, std::uint64_t i) const {
    return order_ == Order::sequential ? i : shuffled(epoch)[i];
  }

 private:
  const std::vector<std::uint64_t>& shuffled(std::uint64_t epoch) const {
    Epoch& e = epochs_[epoch % 2];
    if (e.ordinals.empty() || e.number != epoch) {
      e.number = epoch;
      e.ordinals.resize(records_);
      std::iota(e.ordinals.begin(), e.ordinals.end(), std::uint64_t{0});
      std::shuffle(e.ordinals.begin(), e.ordinals.end(), std::mt19937_64(epoch));
    }
    return e.ordinals;
  }
  struct Epoch {
    std::uint64_t number = 0;
    std::vector<std::uint64_t> ordinals;
  };
  Order order_ = Order::sequential;
  std::uint64_t records_ = 0;
  mutable Epoch epochs_[2];
};

}  // namespace lmdbio::bench
