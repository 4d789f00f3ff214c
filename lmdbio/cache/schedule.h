// The walks of the process and their plans: what is read next, and who waits for it.
//
// No lock of its own: the Prefetcher's.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "lmdbio/cache/chunk_cache.h"
#include "lmdbio/cache/read_job.h"
#include "lmdbio/cache/read_plan.h"
#include "lmdbio/cache/walk.h"

namespace lmdbio::cache {

class Schedule final : public ChunkPlans {
 public:
  void add(Walk& walk) noexcept;
  void remove(Walk& walk) noexcept;
  bool has_walks() const noexcept { return !walks_.empty(); }
  /// Walks that have come to something lately, at least 1.  Any thread, without the lock.
  std::size_t going() const noexcept { return going_.load(std::memory_order_relaxed); }

  /// The walk's plan from now on.  `filled`: see Ticket.  False: out of memory, the plan is empty.
  bool plan(Walk& walk, const ReadPlan& plan, std::optional<ChunkIndex>& filled) noexcept;
  /// Something of the plan is to be read, or is needed and not there.
  bool has_work(const Walk& walk) const noexcept;
  /// Of the chunks that are needed, the first that is not there; none: all are, or have failed.
  std::optional<ChunkIndex> open_chunk(const Walk& walk) const noexcept;
  /// Of the chunks that are needed, the first that another process is bringing.
  std::optional<ChunkIndex> claimed_chunk(const Walk& walk) const noexcept;
  /// It has ended.  `there`: the page cache has the chunk.  True: it is wanted again.
  bool claim_ended(Walk& walk, ChunkIndex chunk, bool there) noexcept;
  /// A part of the needed extent is to be read, or being read.
  bool is_extent_open(const Walk& walk) const noexcept;
  /// The errno of the needed chunks, which are wanted again; 0: none failed.
  int take_error(Walk& walk) noexcept;
  /// What is wanted is the mapping's to give.
  void leave_to_mapping(Walk& walk) noexcept;
  /// What is needed was found in the page cache, and whatever of the plan has been looked at.
  bool all_cached(const Walk& walk) const noexcept;

  /// The next thing to read for a walk.  `idle`: nothing is being read, so no memory will come free by
  /// itself. May throw bad_alloc.
  bool next(ChunkCache& chunks, ReadJob& job, bool idle);
  /// A chunk is done with.
  void settle(FileCache& file, ChunkIndex chunk, Outcome outcome, int error) noexcept;
  /// An extent was read, or left alone; `error`: 0 or an errno.
  void extent_ended(FileCache& file, const Extent& extent, int error) noexcept;

  /// Plans for the file are void.
  void clear_plans(const FileCache& file) noexcept;
  /// Its chunks went back to the file: those that are in plans are wanted again.
  void want_again(const FileCache& file) noexcept;
  /// Out of memory: what walks want is the mapping's to give.
  void give_up() noexcept;
  void after_fork() noexcept;

  bool is_planned(const FileCache& file, ChunkIndex chunk) const noexcept override;
  void look_up(const FileCache& file, ChunkIndex chunk, EvictionFacts& out) const noexcept override;
  std::uint64_t clock() const noexcept override { return plans_; }
  void chunk_went(FileCache& file, ChunkIndex chunk) noexcept override;

 private:
  bool next_chunk(ChunkCache& chunks, ReadJob& job, bool idle);
  bool next_extent(ChunkCache& chunks, ReadJob& job);
  bool goes_on(const Walk& walk) const noexcept;
  void count_going() noexcept;
  void drop_behind(FileCache& file, ChunkIndex chunk) noexcept;

  std::vector<Walk*> walks_;
  std::atomic<std::size_t> going_{1};
  std::size_t next_walk_ = 0;
  std::uint64_t plans_ = 0;
};

}  // namespace lmdbio::cache
