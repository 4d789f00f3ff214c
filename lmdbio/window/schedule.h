// The walks of the process and their plans.  Decides what is read next, and wakes walks that wait.
//
// Has no lock of its own: the Prefetcher's lock guards it.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "lmdbio/window/chunk_cache.h"
#include "lmdbio/window/read_job.h"
#include "lmdbio/window/read_plan.h"
#include "lmdbio/window/walk.h"

namespace lmdbio::window {

/// Keeps the plans of all walks and picks the next read from them.
class Schedule final : public ChunkPlans {
 public:
  void add(Walk& walk) noexcept;
  void remove(Walk& walk) noexcept;
  bool has_walks() const noexcept { return !walks_.empty(); }
  /// Returns how many walks have moved recently, at least 1.  Any thread, without the lock.
  std::size_t going() const noexcept { return going_.load(std::memory_order_relaxed); }

  /// Replaces the walk's plan.  `filled`: see Ticket::filled_.  Returns false if out of memory; the plan is
  /// empty then.
  bool plan(Walk& walk, const ReadPlan& plan, std::optional<ChunkIndex>& filled) noexcept;
  /// Returns whether a part of the plan must still be read, or is needed now and not there.
  bool has_work(const Walk& walk) const noexcept;
  /// Returns the first needed chunk that is not there, or nullopt if all needed chunks are there or failed.
  std::optional<ChunkIndex> open_chunk(const Walk& walk) const noexcept;
  /// Returns the first needed chunk that another process is reading, or nullopt.
  std::optional<ChunkIndex> claimed_chunk(const Walk& walk) const noexcept;
  /// Called when the other process's read of the chunk has ended.  `there`: the page cache has the chunk.
  /// Returns true if the walk wants the chunk again.
  bool claim_ended(Walk& walk, ChunkIndex chunk, bool there) noexcept;
  /// Returns whether a part of the needed extent is still to be read or being read.
  bool is_extent_open(const Walk& walk) const noexcept;
  /// Returns the errno of a needed chunk that failed, or 0 if none failed.  Failed chunks are wanted again
  /// afterwards.
  int take_error(Walk& walk) noexcept;
  /// Makes pending chunks of the walk fall back to page faults.
  void leave_to_mapping(Walk& walk) noexcept;
  /// See Ticket::all_cached().
  bool all_cached(const Walk& walk) const noexcept;

  /// Sets `job` to the next read for a walk.  Returns false if there is none.  `idle`: nothing is being read,
  /// so no memory will become free without an eviction.  May throw bad_alloc.
  bool next(ChunkCache& chunks, ReadJob& job, bool idle);
  /// Records the outcome of a chunk in all plans and wakes walks that wait for it.
  void settle(WindowFile& file, ChunkIndex chunk, Outcome outcome, int error) noexcept;
  /// Records that an extent was read or skipped, and wakes walks that wait for it.  `error`: 0 or an errno.
  void extent_ended(WindowFile& file, const Extent& extent, int error) noexcept;

  /// Empties all plans for the file.
  void clear_plans(const WindowFile& file) noexcept;
  /// Called after all chunks of the file were evicted.  Chunks that are in plans are wanted again.
  void want_again(const WindowFile& file) noexcept;
  /// Called if out of memory.  All pending requests fall back to page faults.
  void give_up() noexcept;
  void after_fork() noexcept;

  bool is_planned(const WindowFile& file, ChunkIndex chunk) const noexcept override;
  void look_up(const WindowFile& file, ChunkIndex chunk, EvictionFacts& out) const noexcept override;
  std::uint64_t clock() const noexcept override { return plans_; }
  void chunk_went(WindowFile& file, ChunkIndex chunk) noexcept override;

 private:
  bool next_chunk(ChunkCache& chunks, ReadJob& job, bool idle);
  bool next_extent(ChunkCache& chunks, ReadJob& job);
  bool goes_on(const Walk& walk) const noexcept;
  void count_going() noexcept;
  void drop_behind(WindowFile& file, ChunkIndex chunk) noexcept;

  std::vector<Walk*> walks_;
  std::atomic<std::size_t> going_{1};
  std::size_t next_walk_ = 0;
  std::uint64_t plans_ = 0;
};

}  // namespace lmdbio::window
