// Prefetches the next leaf of a forward walk into the processor's caches.
//
// Measured on 2.6 M records of 200 B (0.6 GB in the page cache), time of MDB_NEXT relative to stock LMDB:
//                                        untouched   all bytes read
//   nothing                                 0.89          0.95
//   all lines of the leaf, evenly paced     0.57          0.51
//   one line a record: its node's header    0.38          0.67
// Memory bandwidth limits the second method, and memory latency limits the third.  Which method is better
// depends on whether the program reads the values, and only measured times show that.  So LeafAhead tries
// both methods now and then, for some leaves each, and keeps the faster one.  It also prefetches the first
// line of the page after the next.  That line holds the slots, which have the offsets of the node headers.
// Without this prefetch, a load of a slot would delay all later loads (0.48 instead of 0.38).
#pragma once

#include "lmdbio/base/bytes.h"
#include "lmdbio/format/page_view.h"
#include "lmdbio/window/window.h"

namespace lmdbio::ahead {

class LeafAhead {
 public:
  void off() noexcept { next_ = nullptr; }
  /// Starts anew at entry `index` of `leaf`, where the walk starts or to which it jumped.  The leaf lies
  /// below entry `taken` of `parent`.  The walk may never need the next leaf.  So the next leaf is not read,
  /// only prefetched, which cannot cause a page fault.  Its nodes are assumed to have the same offsets as
  /// those of `leaf`, which is true for records of one size.
  void jumped(const window::WindowView& view, const format::PageView& parent, unsigned taken,
              const format::PageView& leaf, unsigned index) noexcept;
  /// Records that the walk came to `leaf` from the leaf before it.  From here on, the walk is expected to
  /// need the next leaf.
  void walked(const window::WindowView& view, const format::PageView& parent, unsigned taken,
              const format::PageView& leaf) noexcept;
  /// Prefetches for a step to entry `i` of the leaf from the entry before it.
  [[gnu::always_inline]] void step(unsigned i) const noexcept {
    if (next_ == nullptr) return;
    const std::byte* line = next_ + load<std::uint16_t>(slots_ + 2 * std::size_t{i});
    __builtin_prefetch(line);
    for (unsigned n = more_lines_; n > 0; --n) __builtin_prefetch(line += kLine);
  }

 private:
  static constexpr std::size_t kLine = 64;
  static constexpr unsigned kTrialLeaves = 128, kKeptLeaves = 4096;
  enum class Phase : unsigned char { start, headers, whole, kept };

  template <format::Version kVersion>
  void jumped_in(const window::WindowView& view, const format::PageView& parent, unsigned taken,
                 const format::PageView& leaf, unsigned index) noexcept;
  template <format::Version kVersion>
  void walked_in(const window::WindowView& view, const format::PageView& parent, unsigned taken,
                 const format::PageView& leaf) noexcept;
  void jumped_10(const window::WindowView& view, const format::PageView& parent, unsigned taken,
                 const format::PageView& leaf, unsigned index) noexcept;
  void walked_10(const window::WindowView& view, const format::PageView& parent, unsigned taken,
                 const format::PageView& leaf) noexcept;
  void tune() noexcept;

  const std::byte* next_ =
      nullptr;  ///< where the slots of the next leaf count from; null: a step prefetches nothing
  const std::byte* slots_ = nullptr;  ///< the entry to prefetch at the step to entry i is in slot i from here
  unsigned more_lines_ = 0;           ///< lines to prefetch of each node after its first
  Phase phase_ = Phase::start;
  bool keep_whole_ = false;
  unsigned leaves_left_ = 0;
  std::uint64_t entries_ = 0;  ///< entries walked in this phase
  std::int64_t since_ns_ = 0;
  double headers_cost_ = 0, whole_cost_ = 0;  ///< measured ns per entry; 0: not tried yet
};

}  // namespace lmdbio::ahead
