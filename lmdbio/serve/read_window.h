// How many requests a home has in flight at the file system.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

namespace lmdbio::serve {

/// Keeps the queues of the file system short, as congestion control of a network does.  Thousands of homes
/// that each read a chunk at once may wait for a second until the first request ends, and a home that ends
/// none looks as if it hangs.  So a home begins with one request, takes one more when as many have ended
/// soon, and halves their number if one has waited for long.  One thread.
class ReadWindow {
 public:
  static constexpr unsigned kMost = 64;
  /// Time in queues, in ns: how much longer a request takes than the shortest one did.
  static constexpr std::int64_t kShort = 50'000'000, kLong = 200'000'000;

  /// Returns how many requests may be in flight.
  unsigned size() const noexcept { return size_; }
  /// `n` requests have been started at `now`, CLOCK_MONOTONIC in ns.
  void started(unsigned n, std::int64_t now) noexcept {
    for (; n != 0 && in_flight_ < kMost; --n) since_[(first_ + in_flight_++) % kMost] = now;
    is_used_ = is_used_ || in_flight_ >= size_;
  }
  /// `n` requests have ended: taken to be those that were started first.
  void ended(unsigned n, std::int64_t now) noexcept {
    for (; n != 0 && in_flight_ != 0; --n) {
      const std::int64_t began = since_[first_], took = now - began;
      --in_flight_;
      first_ = (first_ + 1) % kMost;
      shortest_ = std::min(shortest_, took);
      if (took - shortest_ > kLong && began >= changed_) {
        size_ = std::max(size_ / 2, 1u);
        changed_ = now;  // those that wait already say nothing about the new size
        short_ = 0;
      } else if (took - shortest_ < kShort && ++short_ >= size_ && is_used_) {
        size_ = std::min(size_ + 1, kMost);
        short_ = 0;
        is_used_ = false;
      }
    }
  }

 private:
  unsigned size_ = 1, in_flight_ = 0, first_ = 0;
  unsigned short_ = 0;    ///< requests that have ended soon, since size_ has changed
  bool is_used_ = false;  ///< so many were in flight since then
  std::int64_t changed_ = std::numeric_limits<std::int64_t>::min();
  std::int64_t shortest_ = std::numeric_limits<std::int64_t>::max();
  std::array<std::int64_t, kMost> since_{};  ///< starts of the requests in flight: a ring from first_ on
};

}  // namespace lmdbio::serve
