// Manages the resident chunks of all files of the process.  Takes memory for chunks, publishes them over
// their windows, and evicts them when the memory is needed elsewhere.
//
// Has no lock of its own: the Prefetcher's lock guards it.  No thread holds that lock during a read or a
// wait.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lmdbio/gather/memory_source.h"
#include "lmdbio/window/eviction.h"
#include "lmdbio/window/window.h"
#include "lmdbio/window/window_file.h"

namespace lmdbio::window {

/// Tells which chunks are in the plans of walks.
class ChunkPlans {
 public:
  /// Returns whether an active walk has the chunk in its plan.
  virtual bool is_planned(const WindowFile& file, ChunkIndex chunk) const noexcept = 0;
  /// Sets `planned`, and sets `awaited` and `position` from the plans of all walks.
  virtual void look_up(const WindowFile& file, ChunkIndex chunk, EvictionFacts& out) const noexcept = 0;
  /// Returns the time of the eviction clock.  The clock ticks each time a walk's plan moves to another needed
  /// chunk.
  virtual std::uint64_t clock() const noexcept = 0;
  /// Called after the chunk was evicted.  From now on, page faults read its bytes.
  virtual void chunk_went(WindowFile& file, ChunkIndex chunk) noexcept = 0;

 protected:
  ~ChunkPlans() = default;
};

/// Takes memory for chunks, publishes them and evicts them, for all files of the process.
class ChunkCache {
 public:
  /// Takes the limit and the chunk size from the configuration.  `plans` outlives the cache.
  explicit ChunkCache(ChunkPlans& plans) noexcept;

  gather::MemoryBudget& budget() noexcept { return budget_; }
  const gather::MemoryBudget& budget() const noexcept { return budget_; }
  /// Returns the chunk size of files that are opened from now on, in bytes.
  std::size_t chunk_bytes() const noexcept { return chunk_bytes_; }
  /// Returns the files whose chunks may be resident.  The Prefetcher adds and erases files.
  std::vector<WindowFile*>& files() noexcept { return files_; }
  const std::vector<WindowFile*>& files() const noexcept { return files_; }

  /// Takes memory for one more chunk of `file`; evicts other chunks if need be.  Returns false if there is no
  /// memory.  If `urgent`, evicts planned chunks, too.
  bool take_memory(WindowFile& file, bool urgent) noexcept;
  /// Returns whether some resident chunk uses memory of a chunk file.  If `give_back`, first evicts all these
  /// chunks, including planned ones.
  bool keeps_shared(bool give_back) noexcept;
  /// If this process uses more memory than it may use now, evicts some chunks, planned ones last.  Returns
  /// true if there is more to evict; the caller may release the lock before the next call.
  bool shrink() noexcept;
  /// Gives back what take_memory() took, for a chunk that is not published.
  void return_memory(const WindowFile& file) noexcept;
  /// Takes memory for a use other than chunks; evicts chunks as `urgency` says.  Returns false if there is
  /// no room.  With Urgency::ahead it also returns false if `use` would exceed its share.
  bool reserve(gather::MemoryUse use, std::uint64_t bytes,
               gather::Urgency urgency = gather::Urgency::ahead) noexcept;
  /// Gives back memory that reserve() took, in pieces of any size.
  void give_back(gather::MemoryUse use, std::uint64_t bytes) noexcept;
  /// See MemorySource.
  std::uint64_t room_for_needs() const noexcept;
  bool could_take(gather::MemoryUse use, std::uint64_t bytes, std::uint64_t of_readers) const noexcept;
  /// Returns the size, in bytes, of the last chunk for which take_memory() found no memory since the previous
  /// call, or 0.  Does not need the lock.
  std::uint64_t take_shortage() noexcept {
    return shortage_.load(std::memory_order_relaxed) != 0 ? shortage_.exchange(0) : 0;
  }
  /// Called when no walk is left.  Gives up the memory that is guaranteed to walks.
  void walks_ended() noexcept;

  /// Ends the read of a chunk for which take_memory() succeeded.  Publishes the chunk and returns true.  If
  /// that is not possible, gives back its memory and the staging, and returns false.  `good`: all bytes were
  /// read.  `name`: see Resident.
  bool finish(WindowFile& file, ChunkIndex chunk, ChunkTable::Generation generation, bool good,
              Staging& staging, const std::optional<node::ChunkName>& name = {}) noexcept;
  /// Marks a resident chunk as used by lookups, which do not report the chunks that they read.
  void note_lookups(WindowFile& file, ChunkIndex chunk) noexcept {
    file.residents.touch(chunk, plans_.clock(), true);
  }
  /// Called when a transaction of `snapshot` begins, before it reads anything.  If the snapshot is new, gives
  /// all chunks of the file back and returns how many there were.  On ENOMEM the transaction must not begin.
  Result<std::size_t> advance(WindowFile& file, std::uint64_t snapshot) noexcept;
  /// Evicts all chunks of the file.  Returns false if there is no memory for that; the chunks stay then.
  bool give_all_back(WindowFile& file) noexcept;
  /// Does the same for a window without a mapping.  No thread may be reading the window.
  bool empty(WindowFile& file) noexcept;
  /// In a forked child: turns windows back into mappings of their files, and forgets the parent's reads.
  void after_fork() noexcept;

 private:
  ChunkCache(ChunkPlans& plans, std::uint64_t limit) noexcept;
  bool evict_one(bool even_planned) noexcept;
  bool may_shrink() const noexcept;
  bool evict(WindowFile& file, const Resident& resident) noexcept;
  EvictionRank rank_of(const WindowFile& file, const Resident& r) const noexcept;
  void make_room_for_others(WindowFile& file, bool urgent) noexcept;
  bool is_to_stay(const WindowFile& file, const Resident& r) const noexcept;
  void went(WindowFile& file, const Resident& r) noexcept;
  void forget_residents(WindowFile& file) noexcept;
  void complain_if_full(const WindowFile& file) noexcept;

  ChunkPlans& plans_;
  node::MemoryNote note_;
  std::size_t chunk_bytes_;
  gather::MemoryBudget budget_;
  std::vector<WindowFile*> files_;
  bool full_logged_ = false;
  std::atomic<std::uint64_t> shortage_{0};
  bool joined_ = false;  ///< walks have joined the budget
};

}  // namespace lmdbio::window
