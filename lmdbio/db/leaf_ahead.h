// The next leaf of a forward walk, brought into the processor's caches while this one is walked.
//
// Measured on 2.6 M records of 200 B (0.6 GB in the page cache), MDB_NEXT ours/stock:
//                                        untouched   all bytes read
//   nothing                                 0.89          0.95
//   all lines of the leaf, evenly paced     0.57          0.51
//   one line a record: its node's header    0.38          0.67
// The memory's bandwidth is the limit of the second, its latency of the third, and which is right depends on
// whether the program reads the values: nothing tells but time.  So both are tried, some leaves each, every now
// and then, and the faster one is kept.  The page after the next has its first line fetched too: its slots
// say where its headers are, and a load that waits for them would hold up everything behind it (0.48
// instead of 0.38).
#pragma once

#include "lmdbio/base/bytes.h"
#include "lmdbio/cache/window.h"
#include "lmdbio/format/page_view.h"

namespace lmdbio::db {

class LeafAhead {
 public:
  void off() noexcept { next_ = nullptr; }
  /// The walk starts, or jumped, to entry `index` of `leaf`, below entry `taken` of `parent`.  The neighbour may
  /// never be asked for, so it is only prefetched, which cannot fault: its entries are taken to lie where
  /// this leaf's lie, as they do where records have one size.
  void jumped(const cache::WindowView& view, const format::PageView& parent, unsigned taken,
              const format::PageView& leaf, unsigned index) noexcept;
  /// The walk came to `leaf` from the one before it: on from here the next one is expected.
  void walked(const cache::WindowView& view, const format::PageView& parent, unsigned taken,
              const format::PageView& leaf) noexcept;
  /// A step to entry `i` of the leaf, from the one before it.
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

  static const std::byte* leaf_at(const cache::WindowView& view, const format::PageView& parent, unsigned i) noexcept;
  void tune() noexcept;

  const std::byte* next_ = nullptr;   ///< null: nothing to do in a step
  const std::byte* slots_ = nullptr;  ///< of the entries to fetch, shifted by the step at which they are
  unsigned more_lines_ = 0;          ///< of each node, after its first
  Phase phase_ = Phase::start;
  bool keep_whole_ = false;
  unsigned leaves_left_ = 0;
  std::uint64_t entries_ = 0;  ///< walked in this phase
  std::int64_t since_ns_ = 0;
  double headers_cost_ = 0, whole_cost_ = 0;  ///< ns an entry; 0: not tried yet
};

}  // namespace lmdbio::db
