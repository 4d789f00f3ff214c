// What one walk wants read next, and the ticket by which it waits for what it needs now.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "lmdbio/cache/chunk_table.h"
#include "lmdbio/io/extents.h"

namespace lmdbio::cache {

class Walk;

/// Chunks `first` to `last`; none if `last` is before `first`.
struct ChunkRange {
  ChunkIndex first{1}, last{0};
  bool empty() const noexcept { return raw(last) < raw(first); }
  bool contains(ChunkIndex c) const noexcept { return raw(c) >= raw(first) && raw(c) <= raw(last); }
};

/// In the order in which the walk will come to it.
struct ReadPlan {
  std::span<const ChunkIndex> chunks;  ///< no two the same
  std::span<const Extent> extents;     ///< for which whole chunks would be waste: into the page cache
  ChunkRange needed_chunks;            ///< among the chunks: the walk cannot go on without
  Extent needed_extent;                ///< likewise one of the extents; 0 bytes: none
};

/// Of Prefetcher::submit(), for one Prefetcher::wait(); a new plan of the walk ends the older ticket.
class [[nodiscard]] Ticket {
 public:
  Ticket() = default;
  /// All that is needed is there, or is the mapping's to give: wait() does not wait.
  bool ready() const noexcept { return !pending_; }
  /// After wait(): the chunks that are needed were found in the page cache, and so was whatever of the plan
  /// has been looked at: the walk may need no reads.
  bool all_cached() const noexcept { return all_cached_; }

 private:
  friend class Prefetcher;
  Walk* walk_ = nullptr;
  bool pending_ = false, all_cached_ = false;
  std::optional<ChunkIndex> given_;   ///< other processes have read it, as they said
  unsigned given_times_ = 0;          ///< in a row
  std::optional<ChunkIndex> filled_;  ///< the walk comes to it, and it was brought into the page cache for it
};

}  // namespace lmdbio::cache
