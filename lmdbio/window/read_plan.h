// A walk's plan of what to read next, and the ticket with which the walk waits for what it needs now.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "lmdbio/io/extents.h"
#include "lmdbio/window/chunk_table.h"

namespace lmdbio::window {

class Walk;

/// The chunks `first` to `last`.  Empty if `last` is less than `first`.
struct ChunkRange {
  ChunkIndex first{1}, last{0};
  bool empty() const noexcept { return raw(last) < raw(first); }
  bool contains(ChunkIndex c) const noexcept { return raw(c) >= raw(first) && raw(c) <= raw(last); }
};

/// A walk's requests, in the order in which the walk will reach them.
struct ReadPlan {
  std::span<const ChunkIndex> chunks;  ///< without duplicates
  std::span<const Extent> extents;     ///< read into the page cache; for data that is not worth whole chunks
  ChunkRange needed_chunks;            ///< those of `chunks` without which the walk cannot go on
  Extent needed_extent;  ///< part of `extents` without which the walk cannot go on; 0 bytes: none
};

/// Returned by Prefetcher::submit(), for one call of Prefetcher::wait().  A ticket is void once the walk
/// submits a new plan.
class [[nodiscard]] Ticket {
 public:
  Ticket() = default;
  /// Returns true if wait() will not wait: all needed data is resident, or page faults will read it.
  bool ready() const noexcept { return !pending_; }
  /// After wait(): returns true if all chunks of the plan that have been checked so far were found in the
  /// page cache, including all needed chunks.  Then the walk may need no reads.
  bool all_cached() const noexcept { return all_cached_; }

 private:
  friend class Prefetcher;
  Walk* walk_ = nullptr;
  bool pending_ = false, all_cached_ = false;
  std::optional<ChunkIndex> given_;   ///< a chunk that other processes said they had read
  unsigned given_times_ = 0;          ///< how many times in a row they said so
  std::optional<ChunkIndex> filled_;  ///< reached now, after it was read into the page cache for the walk
};

}  // namespace lmdbio::window
