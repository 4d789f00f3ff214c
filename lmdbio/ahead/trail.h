// Records where a walk has been since it last turned.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lmdbio/ahead/planner.h"
#include "lmdbio/format/layout.h"

namespace lmdbio::ahead {

/// The chunks that a walk has been granted.  A walk in one direction does not come to a page twice.  If it
/// returns to a chunk without a turn, it uses parts of that chunk at different times.
class Trail {
 public:
  /// Records that the walk comes to `place`.  Returns true if it has turned: at an edge, by a change of
  /// direction, or by a jump backwards.  The trail is empty then, because the walk may need its earlier
  /// chunks again.
  bool turns_at(const WalkPlace& place, bool edge) noexcept {
    const std::size_t depth = std::min(place.taken.size(), taken_.size());
    const bool knows = depth == depth_ && !edge && place.forward == forward_;
    const bool goes_on =
        knows &&
        (forward_ ? !std::lexicographical_compare(place.taken.begin(), place.taken.end(), taken_.begin(),
                                                  taken_.begin() + static_cast<std::ptrdiff_t>(depth))
                  : !std::lexicographical_compare(taken_.begin(),
                                                  taken_.begin() + static_cast<std::ptrdiff_t>(depth),
                                                  place.taken.begin(), place.taken.end()));
    std::copy_n(place.taken.begin(), depth, taken_.begin());
    depth_ = depth;
    forward_ = place.forward;
    if (!goes_on) been_.clear();
    return !goes_on;
  }

  bool been_in(std::uint32_t chunk) const noexcept { return chunk < been_.size() && been_[chunk]; }
  /// Records that the walk was granted `chunk`.  May throw bad_alloc.
  void enter(std::uint32_t chunk) {
    if (chunk >= been_.size()) been_.resize(std::size_t{chunk} + 1);
    been_[chunk] = true;
  }

 private:
  std::array<std::uint16_t, format::kMaxDepth> taken_{};
  std::size_t depth_ = ~std::size_t{0};
  bool forward_ = true;
  std::vector<bool> been_;
};

}  // namespace lmdbio::ahead
