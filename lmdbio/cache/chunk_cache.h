// The resident chunks of all files of the process: memory is taken for them, they are published over their
// windows, and given back to the files when others need the memory.
//
// No lock of its own: the Prefetcher's, which is held for no read and no wait.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lmdbio/cache/eviction.h"
#include "lmdbio/cache/file_cache.h"
#include "lmdbio/cache/memory_source.h"
#include "lmdbio/cache/window.h"

namespace lmdbio::cache {

/// What the plans of walks say of chunks.
class ChunkPlans {
 public:
  /// A walk that goes on has the chunk in its plan.
  virtual bool is_planned(const FileCache& file, ChunkIndex chunk) const noexcept = 0;
  /// Sets `planned`, and of the plans of all walks `awaited` and `position`.
  virtual void look_up(const FileCache& file, ChunkIndex chunk, EvictionFacts& out) const noexcept = 0;
  /// Plans of all walks so far: the clock of eviction.
  virtual std::uint64_t clock() const noexcept = 0;
  /// The chunk is the file's mapping again.
  virtual void chunk_went(FileCache& file, ChunkIndex chunk) noexcept = 0;

 protected:
  ~ChunkPlans() = default;
};

class ChunkCache {
 public:
  /// Of the configuration; `plans` outlives it.
  explicit ChunkCache(ChunkPlans& plans) noexcept;

  MemoryBudget& budget() noexcept { return budget_; }
  const MemoryBudget& budget() const noexcept { return budget_; }
  /// Of files opened from now on, bytes.
  std::size_t chunk_bytes() const noexcept { return chunk_bytes_; }
  /// Files whose chunks may be resident.  The Prefetcher adds and erases them.
  std::vector<FileCache*>& files() noexcept { return files_; }
  const std::vector<FileCache*>& files() const noexcept { return files_; }

  /// For one more chunk of `file`.  False: there is none to be had; `urgent`: even by taking what is planned.
  bool take_memory(FileCache& file, bool urgent) noexcept;
  /// Chunks are resident whose memory is a chunk file's.  `give_back`: these go first, also planned ones.
  bool keeps_shared(bool give_back) noexcept;
  /// Evicts some chunks if this process has more than it may have now, planned ones last.  True: more are to
  /// go, and the lock may be left before.
  bool shrink() noexcept;
  /// Of take_memory(), for a chunk that is not published.
  void return_memory(const FileCache& file) noexcept;
  /// For what is not a chunk; chunks give way as `urgency` says.  False: no room, or more than the use's
  /// share (which what is needed may exceed).
  bool reserve(MemoryUse use, std::uint64_t bytes, Urgency urgency = Urgency::ahead) noexcept;
  /// Of reserve(), in pieces of any size.
  void give_back(MemoryUse use, std::uint64_t bytes) noexcept;
  /// See MemorySource.
  std::uint64_t room_for_needs() const noexcept;
  bool could_take(MemoryUse use, std::uint64_t bytes, std::uint64_t of_readers) const noexcept;
  /// Bytes that a chunk was refused since the last call.  Without the lock.
  std::uint64_t take_shortage() noexcept {
    return shortage_.load(std::memory_order_relaxed) != 0 ? shortage_.exchange(0) : 0;
  }
  /// No walk goes on any more.
  void walks_ended() noexcept;

  /// Of a chunk whose memory was taken: published, or its memory is given back with the staging.
  /// `name`: see Resident.
  bool finish(FileCache& file, ChunkIndex chunk, ChunkTable::Generation generation, bool good,
              Staging& staging, const std::optional<node::ChunkName>& name = {}) noexcept;
  /// Lookups, which are not asked, came to a resident chunk.
  void note_lookups(FileCache& file, ChunkIndex chunk) noexcept {
    file.residents.touch(chunk, plans_.clock(), true);
  }
  /// A transaction of `snapshot` begins; it has read nothing yet.  ENOMEM: it must not.  How many chunks
  /// went.
  Result<std::size_t> advance(FileCache& file, std::uint64_t snapshot) noexcept;
  /// Gives all chunks of the file back.  False: no memory for that, they stay.
  bool give_all_back(FileCache& file) noexcept;
  /// The same for a window without a mapping, which nobody reads.
  bool empty(FileCache& file) noexcept;
  /// In a forked child: windows are mappings of their files again, and nothing is being read.
  void after_fork() noexcept;

 private:
  ChunkCache(ChunkPlans& plans, std::uint64_t limit) noexcept;
  bool evict_one(bool even_planned) noexcept;
  bool may_shrink() const noexcept;
  bool evict(FileCache& file, const Resident& resident) noexcept;
  EvictionRank rank_of(const FileCache& file, const Resident& r) const noexcept;
  void make_room_for_others(FileCache& file, bool urgent) noexcept;
  bool is_to_stay(const FileCache& file, const Resident& r) const noexcept;
  void went(FileCache& file, const Resident& r) noexcept;
  void forget_residents(FileCache& file) noexcept;
  void complain_if_full(const FileCache& file) noexcept;

  ChunkPlans& plans_;
  node::MemoryNote note_;
  std::size_t chunk_bytes_;
  MemoryBudget budget_;
  std::vector<FileCache*> files_;
  bool full_logged_ = false;
  std::atomic<std::uint64_t> shortage_{0};
  bool joined_ = false;  ///< walks use the budget
};

}  // namespace lmdbio::cache
