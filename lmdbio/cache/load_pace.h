// How much of a file's load is in flight: as much as storage takes without keeping the program's own reads
// waiting. A pure function of how long these reads take.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lmdbio::cache {

/// Of one file, as this process reads it.
class LoadPace {
 public:
  /// A read that the program waits for takes at most about so many times as long beside a load as without
  /// one.
  static constexpr std::int64_t kSlower = 2;
  /// So many chunks of a load without such a read: nobody waits now.
  static constexpr unsigned kUnwatched = 8;

  /// A load begins.
  void begin() noexcept {
    depth_ = usual_ns_ == 0 ? kNoLimit : 1;
    unwatched_ = 0;
  }
  /// The program has waited for a read of its own for `ns`.
  void waited(std::int64_t ns, bool loading) noexcept {
    if (!loading) {
      usual_ns_ += usual_ns_ == 0 ? ns : (ns - usual_ns_) / 8;
      return;
    }
    unwatched_ = 0;
    if (usual_ns_ == 0) return;
    depth_ = std::min(depth_, kMost);
    if (ns > kSlower * usual_ns_)
      depth_ = std::max(depth_ - 1, 1u);
    else if (2 * ns < (kSlower + 1) * usual_ns_)
      ++depth_;
  }
  /// Another process loads the file: it may stop.
  void follow() noexcept { depth_ = 1; }
  /// A chunk of the load was read.
  void read() noexcept {
    if (++unwatched_ > kUnwatched && depth_ < kMost) ++depth_;
  }
  /// How many chunks may be in flight.
  unsigned depth() const noexcept { return depth_; }

 private:
  static constexpr unsigned kMost = 64, kNoLimit = ~0u;

  std::int64_t usual_ns_ = 0;  ///< a read that the program waits for, without a load; 0: not known
  unsigned depth_ = kNoLimit;
  unsigned unwatched_ = 0;  ///< chunks since the last such read
};

}  // namespace lmdbio::cache
