// Reads ahead for all walks of the process: plans in, chunks and page cache out, within one limit of memory.
//
// One lock guards what the parts below have: the walks and their plans (Schedule), chunks and memory
// (ChunkCache), what files have been read.  No thread reads a database file or waits while it holds the lock.
// It does make system calls: those that publish and evict chunks, and reads of /proc and of cgroup files that
// tell how much memory is left.  One thread reads (IoWorker), from the first file that needs it to the last
// that is closed.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/result.h"
#include "lmdbio/cache/chunk_cache.h"
#include "lmdbio/cache/file_cache.h"
#include "lmdbio/cache/read_job.h"
#include "lmdbio/cache/read_plan.h"
#include "lmdbio/cache/schedule.h"
#include "lmdbio/cache/walk.h"
#include "lmdbio/io/stall_notice.h"

namespace lmdbio::cache {

class IoWorker;

class Prefetcher final : public MemorySource {
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
  /// now, of which the database uses `used_bytes`.  ENOMEM: it must not begin.
  Status advance(const Window& window, std::uint64_t snapshot, std::uint64_t file_bytes,
                 std::uint64_t used_bytes) noexcept;

  void add(Walk& walk) noexcept;
  void remove(Walk& walk) noexcept;
  /// The walk's plan from now on, instead of the one before.  The ticket is for what it needs now; who needs
  /// nothing may drop it.
  Ticket submit(Walk& walk, const ReadPlan& plan) noexcept;
  /// Waits until what the plan needs is there, or is the mapping's to give.  An errno: its read failed; the
  /// next plan that needs it tries again.
  Status wait(Ticket& ticket) noexcept;
  Status wait(Ticket&& ticket) noexcept { return wait(ticket); }
  /// A part of it is in an extent that is being read.
  bool is_reading(const FileCache& file, const Extent& extent) noexcept;
  /// Extents that the walk has wished for before are to be looked for anew.
  void forget_extents(Walk& walk) noexcept;
  /// Of a chunk, what the walk has had read as extents.  With lock() held.
  std::uint64_t asked_bytes(const Walk& walk, ChunkIndex chunk) const noexcept;
  /// How many chunks a plan may have.
  std::size_t most_chunks(const FileCache& file) const noexcept;

  /// `chunk` read and published by the calling thread: where there is no mapping to fall back on.
  Status read_chunk(FileCache& file, ChunkIndex chunk) noexcept;

  /// A walk goes through a file that is mapped without read-ahead: with it as long as there is such a walk.
  void use_readahead(FileCache& file, bool on) noexcept;
  /// Loads the first `used_bytes` of `file` in the background, into the page cache or as chunks.  False: they
  /// fit nowhere, or there is no thread for it.  With lock() held; no load of the file is going on.
  bool begin_whole_load(FileCache& file, std::uint64_t used_bytes) noexcept;
  /// A walk under a snapshot of `used_bytes` has passed these values by; each is told by an address in it.
  /// If they come to be read later, outside of calls, the file is loaded as a whole, where reads take long.
  void watch_late_use(FileCache& file, std::span<const std::byte* const> values,
                      std::uint64_t used_bytes) noexcept;
  /// With lock() held.
  bool is_loading(const FileCache& file) const noexcept { return file.load.path != ReadPath::none; }

  /// Drops what a window without a mapping holds, and what is being read for it.  With lock() held; no
  /// transaction reads it, and none begins as long as the lock is held.  False: no memory for that; what it
  /// holds stays.
  bool empty(FileCache& file) noexcept;
  /// More memory is in use than the limit: what cannot be mapped is not bound by it.  With lock() held.
  bool over_limit() const noexcept { return chunks_.budget().over_limit(); }

  // The process's memory: MemorySource.  take() of Urgency::ahead gives at most the use's share.
  std::uint64_t memory_limit() const noexcept override { return chunks_.budget().limit(); }
  void join(MemoryUse use) noexcept override;
  void leave(MemoryUse use) noexcept override;
  bool take(MemoryUse use, std::uint64_t bytes, Urgency urgency) noexcept override;
  void count(MemoryUse use, std::uint64_t bytes) noexcept override;
  void give_back(MemoryUse use, std::uint64_t bytes) noexcept override;
  std::uint64_t room_for_needs() noexcept override;
  std::uint64_t beyond_guaranteed(MemoryUse use) noexcept override;
  bool could_take(MemoryUse use, std::uint64_t bytes, std::uint64_t of_readers) noexcept override;
  bool pressed(MemoryUse use) noexcept override;
  /// `use` may keep for later what nobody uses now: it has no more than is guaranteed to it.  With lock()
  /// held.
  bool may_keep(MemoryUse use) const noexcept {
    return chunks_.budget().used(use) <= chunks_.budget().guaranteed(use);
  }
  void begin_wait() noexcept override;
  void end_wait() noexcept override;
  /// Called with no lock held when memory was refused to a walk or to prefetching: gives back up to so many
  /// bytes that nobody uses now.
  using Reclaim = void (*)(std::uint64_t bytes) noexcept;
  void set_reclaim(Reclaim call) noexcept { reclaim_.store(call, std::memory_order_release); }
  /// How often this process was forked off since the Prefetcher was made: what is the parent's is told by it.
  unsigned forks() const noexcept { return forks_.load(std::memory_order_relaxed); }

  ReadStats stats(const FileCache& file) noexcept;
  /// Bytes of memory that hold chunks or are staging, the limit.
  std::uint64_t memory_used() noexcept;

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

  Prefetcher() = default;
  bool ensure_worker() noexcept;
  /// Waits for a while, with the lock released.  `offset`: of what is not there, for the log.
  void wait(Walk& walk, std::unique_lock<SignalSafeMutex>& lock, std::uint64_t offset,
            StallNotice& stall) noexcept;
  void wait_for_others(Walk& walk, ChunkIndex chunk, std::unique_lock<SignalSafeMutex>& lock, Ticket& ticket,
                       StallNotice& stall) noexcept;
  void end_wait(Walk& walk, const StallNotice& stall) noexcept;
  std::shared_ptr<FileCache> join(FileCache& file) noexcept;
  void reclaim(std::uint64_t bytes) noexcept;
  bool has_busy_writer(const FileCache& file) const noexcept;

  // For the worker, with the lock held.
  /// It is out of memory: what walks want is the mapping's to give.
  void give_up() noexcept;
  bool next_job(ReadJob& job, bool idle);
  /// Without the lock: gives memory back if others need it.  After so many ns it is to be called again; 0: it
  /// need not be.
  std::int64_t look_at_memory() noexcept;
  bool memory_is_nearly_full() noexcept;
  /// A load of a whole file waits until memory is not nearly full any more.
  bool loads_wait() noexcept;

  SignalSafeMutex mutex_;  // guards all below
  Schedule schedule_;
  ChunkCache chunks_{schedule_};
  IoWorker* worker_ = nullptr;
  EventCount chunk_read_;  ///< read_chunk() has ended somewhere
  std::atomic<unsigned> forks_{0};
  std::atomic<Reclaim> reclaim_{nullptr};
};

}  // namespace lmdbio::cache
