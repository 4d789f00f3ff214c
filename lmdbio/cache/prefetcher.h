// Reads ahead for all walks of the process: wishes in, chunks and page cache out, within one limit of memory.
//
// One lock guards walks, chunk states and the count of memory; it is held for no read and no wait, only for
// the system calls that publish and reclaim.  One thread does the reading (IoWorker), from the first file
// that needs it to the last that is closed.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/result.h"
#include "lmdbio/cache/file_cache.h"
#include "lmdbio/cache/walk.h"

namespace lmdbio::cache {

class IoWorker;

/// What a walk wants, in the order in which it will come to it.
struct Wishes {
  std::span<const ChunkIndex> chunks;  ///< no two the same
  std::span<const WantedExtent>
      extents;                ///< pieces for which whole chunks would be waste: into the page cache
  WantedExtent awaited = {};  ///< one of them, that await() is about; 0 bytes: none
};

class Prefetcher {
 public:
  /// The process's; made at the first call, never destroyed.  Null: out of memory.
  static Prefetcher* get() noexcept;
  /// Null: nobody has called get().
  static Prefetcher* existing() noexcept;
  /// Across a fork: a child would find the one that another thread is making, and has locked.
  static void lock_creation() noexcept;
  static void unlock_creation() noexcept;

  /// The cache of the file under `window`, made at the first call for this window.  `used_bytes`: of the
  /// file, by a database.  `snapshot`: the newest known.  An error: it cannot be read ahead.
  Result<std::shared_ptr<FileCache>> open(const std::shared_ptr<Window>& window, const Origin& origin,
                                          const char* name, std::uint64_t used_bytes,
                                          std::uint64_t snapshot) noexcept;
  /// By each environment that opened it.  After the last the window is the file's mapping again.  Waits for
  /// reads in flight if it was the last file.
  void close(const std::shared_ptr<FileCache>& file) noexcept;
  /// A transaction of `snapshot` begins in `window`; it has read nothing yet.  `file_bytes`: the file's size
  /// now.  ENOMEM: it must not begin.
  Status advance(const Window& window, std::uint64_t snapshot, std::uint64_t file_bytes) noexcept;

  void add(Walk& walk) noexcept;
  void remove(Walk& walk) noexcept;
  /// New wishes of a walk instead of the old ones, then waits until the chunks from `first` to `last` are
  /// there, or are the mapping's to give.  They are among the wishes.  An errno: a read failed; the next call
  /// tries again.
  Status go_on(Walk& walk, const Wishes& wishes, ChunkIndex first, ChunkIndex last) noexcept;
  /// Waits until the awaited extent of the last go_on() has been read, or cannot be.  An errno: the read
  /// failed; the next go_on() that wishes for it tries again.
  Status await(Walk& walk) noexcept;
  /// A part of it is in an extent that is being read.
  bool is_reading(const FileCache& file, const WantedExtent& extent) noexcept;
  /// Extents that the walk has wished for before are to be looked for anew.
  void forget_extents(Walk& walk) noexcept;
  /// Of a chunk, what the walk has had read as extents.
  std::uint64_t asked_bytes(const Walk& walk, ChunkIndex chunk) noexcept;
  /// All of them are in the page cache: the walk needs no reads.
  bool all_cached(const Walk& walk) noexcept;
  /// How many chunks a walk may wish for.
  std::size_t most_wishes(const FileCache& file) noexcept;

  /// `chunk` read and published by the calling thread: where there is no mapping to fall back on.
  Status load(FileCache& file, ChunkIndex chunk) noexcept;

  /// A walk goes through a file that is mapped without read-ahead: with it as long as there is such a walk.
  void use_readahead(FileCache& file, bool on) noexcept;
  /// A walk has started over: what it leaves is worth keeping.
  void note_epoch(FileCache& file) noexcept;
  void note_keys(FileCache& file) noexcept;
  void note_sparse(FileCache& file) noexcept;

  /// A lookup under `snapshot` asked, and found data missing at byte `at` of `used_bytes`.  `far`: from where
  /// the last one was.  Where lookups go all over a file that fits, a load of all of it begins.  How many
  /// such misses there were under this snapshot; 0: what is missing is being loaded.
  std::uint64_t lookup_missed(FileCache& file, std::uint64_t snapshot, std::uint64_t at,
                              std::uint64_t used_bytes, bool far) noexcept;
  /// Whose transaction fetches all leaf pages: true once a snapshot, and not for every snapshot of a busy
  /// writer.
  bool claim_leaves(FileCache& file, std::uint64_t snapshot) noexcept;
  void note_leaves(FileCache& file, std::uint64_t pages) noexcept;
  /// `bytes` were read for a lookup, which waited for `ns`.
  void note_exact(FileCache& file, std::uint64_t bytes, std::uint64_t ns) noexcept;
  /// Counts of walks that use each k-th value: what is to be added to the file's.
  void note_strides(FileCache& file, const ReadStats& more) noexcept;
  /// Drops what a window without a mapping holds, and what is being read for it.  With lock() held; no
  /// transaction reads it, and none begins as long as the lock is held.  False: no memory for that; what it
  /// holds stays.
  bool empty(FileCache& file) noexcept;
  /// More memory is in use than the limit: what cannot be mapped is not bound by it.  With lock() held.
  bool over_limit() const noexcept { return used_ > limit_; }

  /// `bytes` of private memory for what is not a chunk, within the same limit; at most three quarters of it.
  /// Chunks that no walk has planned give way.  False: there is no room.
  bool reserve(std::uint64_t bytes) noexcept;
  /// Of reserve(), in pieces of any size.
  void give_back(std::uint64_t bytes) noexcept;
  /// How often this process was forked off since the Prefetcher was made: what is the parent's is told by it.
  unsigned forks() const noexcept { return forks_.load(std::memory_order_relaxed); }

  ReadStats stats(const FileCache& file) noexcept;
  /// Bytes of memory that hold chunks or are staging, the limit.
  std::uint64_t memory_used() noexcept;
  std::uint64_t memory_limit() const noexcept { return limit_; }

  // Around a fork: lock() before, unlock() in the parent, after_fork_in_child() in the child.  They also
  // guard what belongs to files and has to agree with them (db/unmapped_file.h): held for no read and no
  // wait.
  void lock() noexcept { mutex_.lock(); }
  void unlock() noexcept { mutex_.unlock(); }
  /// Windows are mappings of their files again, so that the child pins none of the parent's memory; the
  /// parent's reads and thread are forgotten.  Leaves the lock free.
  void after_fork_in_child() noexcept;

 private:
  friend class IoWorker;
  struct Job {
    std::shared_ptr<FileCache> file;
    ChunkIndex chunk{};
    ChunkTable::Generation generation{};
    WantedExtent extent;      ///< bytes not 0: this, not a chunk
    bool has_memory = false;  ///< of a chunk to publish
    bool whole = false;       ///< of a WholeLoad
    unsigned load = 0;        ///< of which one: WholeLoad::begun
  };

  /// A wait of a program for data.
  struct Stall {
    std::int64_t begun = 0;
    bool told = false;
  };

  Prefetcher();
  bool ensure_worker() noexcept;
  /// Waits for a while, with the lock released.  `offset`: of what is not there, for the log.
  void wait(Walk& walk, std::unique_lock<SignalSafeMutex>& lock, std::uint64_t offset, Stall& stall) noexcept;
  void end_wait(Walk& walk, const Stall& stall) noexcept;
  bool is_coming(Walk& walk, const WantedExtent& extent) const noexcept;
  std::shared_ptr<FileCache> join(FileCache& file) noexcept;

  /// For chunks that are not published.
  struct NoPlaces {
    bool publish(ChunkIndex) noexcept { return false; }
    bool restore(ChunkIndex) noexcept { return false; }
    bool restore_all() noexcept { return false; }
  };

  // For the worker, with the lock held.
  /// It is out of memory: what walks want is the mapping's to give.
  void give_up() noexcept;
  /// `idle`: nothing is being read, so no memory will come free by itself.
  bool next_job(Job& job, bool idle);
  bool next_extent(Job& job);
  bool next_of_load(Job& job, bool idle);
  /// A chunk of a WholeLoad is done with.  `good`: it is where it was to be.
  void load_went_on(const Job& job, bool good) noexcept;
  bool begin_load(FileCache& file, std::uint64_t used_bytes) noexcept;
  /// An extent was read, or left alone; `error`: 0 or an errno.
  void extent_ended(FileCache& file, const WantedExtent& extent, int error) noexcept;
  /// Once in 64 MiB of fills: there is no room for the file in the page cache any more.
  void look_at_memory(FileCache& file) noexcept;
  /// A walk came to a chunk that was brought into the page cache for it.
  Status plan_and_wait(Walk& walk, const Wishes& wishes, ChunkIndex first, ChunkIndex last) noexcept;
  void look_for_filled(FileCache& file, ChunkIndex chunk) noexcept;
  void leave_page_cache(FileCache& file, const char* why) noexcept;
  bool take_memory(FileCache& file, bool urgent) noexcept;
  void return_memory(FileCache& file) noexcept {
    if (!file.anonymous) used_ -= file.chunk_bytes;
  }
  void settle(FileCache& file, ChunkIndex chunk, Walk::Outcome outcome, int error) noexcept;
  bool goes_on(const Walk& walk) const noexcept;
  bool planned(const FileCache& file, ChunkIndex chunk) const noexcept;
  bool reclaim_one(bool even_planned) noexcept;
  bool reclaim(FileCache& file, std::size_t resident) noexcept;
  /// All of them are the file's mapping again.
  void forget_residents(FileCache& file) noexcept;
  void drop_behind(FileCache& file, ChunkIndex chunk) noexcept;
  /// Of a chunk whose memory was taken: it is published, or its memory is given back with the staging.
  bool finish(FileCache& file, ChunkIndex chunk, ChunkTable::Generation generation, bool good,
              Staging& staging) noexcept;
  std::uint64_t limit_now() noexcept;
  void complain_if_full(const FileCache& file) noexcept;

  SignalSafeMutex mutex_;  // guards all below
  std::vector<FileCache*> files_;
  std::vector<Walk*> walks_;
  std::size_t next_walk_ = 0;
  std::uint64_t plans_ = 0;                            ///< counts go_on(): the clock of the reclaiming policy
  std::uint64_t used_ = 0;                             ///< bytes: staging, resident chunks and reserved_
  std::uint64_t reserved_ = 0;                         ///< bytes: of reserve()
  std::uint64_t reserved_areas_ = 0;                   ///< of resident_areas_, likewise
  std::uint64_t resident_areas_ = 0, most_areas_ = 0;  ///< VMAs
  std::int64_t checked_ns_ = 0;                        ///< see limit_now()
  std::uint64_t grow_to_ = 0;                          ///< likewise
  bool told_full_ = false;
  std::uint64_t limit_ = 0;  ///< bytes
  bool limit_is_share_ = false;
  std::size_t chunk_bytes_ = 0;
  IoWorker* worker_ = nullptr;
  EventCount loaded_;  ///< load() has ended somewhere
  std::atomic<unsigned> forks_{0};
};

}  // namespace lmdbio::cache
