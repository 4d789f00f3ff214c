// Reads ahead for all walks of the process: takes their plans, and reads into chunks and into the page
// cache, within one limit of memory.
//
// One lock guards the state of its parts: walks and their plans (Schedule), chunks and memory (ChunkCache),
// and which parts of files have been read.  No thread reads a database file or waits while it holds the
// lock.  It does make system calls: those that publish and evict chunks, and reads of /proc and of cgroup
// files that tell how much memory is left.  One thread does the reads (IoWorker).  It starts with the first
// file that needs it and ends when the last file is closed.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/result.h"
#include "lmdbio/io/stall_notice.h"
#include "lmdbio/window/chunk_cache.h"
#include "lmdbio/window/file_cache.h"
#include "lmdbio/window/read_job.h"
#include "lmdbio/window/read_plan.h"
#include "lmdbio/window/schedule.h"
#include "lmdbio/window/walk.h"

namespace lmdbio::window {

class IoWorker;

/// Reads ahead for walks, and supplies private memory to readers and index builds.  One per process.  Any
/// thread, unless stated otherwise.
class Prefetcher final : public gather::MemorySource {
 public:
  /// Returns the Prefetcher of the process.  The first call makes it; it is never destroyed.  Returns
  /// nullptr if out of memory.
  static Prefetcher* get() noexcept;
  /// Returns nullptr until get() has been called.
  static Prefetcher* existing() noexcept;
  /// Called around a fork.  Otherwise a child could inherit a Prefetcher that another thread is making,
  /// with its lock held.
  static void lock_creation() noexcept;
  static void unlock_creation() noexcept;

  /// Returns the cache of the file under `window`, and makes it at the first call for this window.
  /// `used_bytes`: the part of the file that the database uses.  `snapshot`: the newest known one.  On an
  /// error the file cannot be read ahead.
  Result<std::shared_ptr<FileCache>> open(const std::shared_ptr<Window>& window, const Origin& origin,
                                          const char* name, std::uint64_t used_bytes,
                                          std::uint64_t snapshot) noexcept;
  /// Ends one use of the file; each environment that opened it calls this once.  After the last call page
  /// faults of the file's mapping give all data.  Waits for reads in flight if this was the last file.
  void close(const std::shared_ptr<FileCache>& file) noexcept;
  /// Called when a transaction of `snapshot` begins in `window`, before it reads anything.  Evicts chunks
  /// of older snapshots.  `file_bytes`: the current size of the file.  `used_bytes`: the part of it that
  /// the database uses.  ENOMEM: the transaction must not begin.
  Status advance(const Window& window, std::uint64_t snapshot, std::uint64_t file_bytes,
                 std::uint64_t used_bytes) noexcept;

  void add(Walk& walk) noexcept;
  void remove(Walk& walk) noexcept;
  /// Replaces the walk's plan.  The ticket is for what the walk needs now.  A walk that needs nothing may
  /// drop it.
  Ticket submit(Walk& walk, const ReadPlan& plan) noexcept;
  /// Waits until the data that the plan needs is resident or is left to page faults.  An errno: its read
  /// failed; the next plan that needs the data tries again.
  Status wait(Ticket& ticket) noexcept;
  Status wait(Ticket&& ticket) noexcept { return wait(ticket); }
  /// Returns whether a part of `extent` is being read.
  bool is_reading(const FileCache& file, const Extent& extent) noexcept;
  /// Forgets which extents the walk has requested, so that its next plan requests them again.
  void forget_extents(Walk& walk) noexcept;
  /// Returns how many bytes of the chunk the walk has requested as extents.  With lock() held.
  std::uint64_t asked_bytes(const Walk& walk, ChunkIndex chunk) const noexcept;
  /// Returns how many chunks a plan may have.
  std::size_t most_chunks(const FileCache& file) const noexcept;

  /// Reads and publishes `chunk` in the calling thread, for files without a mapping to fall back on.  Waits
  /// if another thread is reading it.  EIO: the chunk lies beyond the end of the file.  EBADF: the file was
  /// closed.  ENOMEM: out of memory, or the chunk could not be published.  Other errors are those of the
  /// read.
  Status read_chunk(FileCache& file, ChunkIndex chunk) noexcept;

  /// Adds (`on`) or removes a walk that benefits from the kernel's read-ahead, in a file that is mapped
  /// with MDB_NORDAHEAD.  The mapping has read-ahead as long as there is such a walk.
  void use_readahead(FileCache& file, bool on) noexcept;
  /// Loads the first `used_bytes` of `file` in the background, into the page cache or as chunks.  Returns
  /// false if they fit nowhere or the I/O thread cannot be started.  With lock() held; no load of the file
  /// is going on.
  bool begin_whole_load(FileCache& file, std::uint64_t used_bytes) noexcept;
  /// Records values that a walk under a snapshot of `used_bytes` has passed by; each is given by an address
  /// in it.  If the program reads them later, outside of calls, the file is loaded as a whole.  Does
  /// nothing on local file systems, where reads are fast.
  void watch_late_use(FileCache& file, std::span<const std::byte* const> values,
                      std::uint64_t used_bytes) noexcept;

  /// Drops all chunks of a window without a mapping, and those that are being read for it.  With lock()
  /// held; no transaction reads the window, and none begins while the lock is held.  Returns false if there
  /// is no memory for that: the chunks stay.
  bool empty(FileCache& file) noexcept;
  /// Returns whether more memory is in use than the limit.  This happens because files that cannot be
  /// mapped are not bound by it.  With lock() held.
  bool over_limit() const noexcept { return chunks_.budget().over_limit(); }

  // The process's memory: MemorySource.  take() with Urgency::ahead gives at most the use's
  // share.
  std::uint64_t memory_limit() const noexcept override { return chunks_.budget().limit(); }
  void join(gather::MemoryUse use) noexcept override;
  void leave(gather::MemoryUse use) noexcept override;
  bool take(gather::MemoryUse use, std::uint64_t bytes, gather::Urgency urgency) noexcept override;
  void count(gather::MemoryUse use, std::uint64_t bytes) noexcept override;
  void give_back(gather::MemoryUse use, std::uint64_t bytes) noexcept override;
  std::uint64_t room_for_needs() noexcept override;
  std::uint64_t beyond_guaranteed(gather::MemoryUse use) noexcept override;
  bool could_take(gather::MemoryUse use, std::uint64_t bytes, std::uint64_t of_readers) noexcept override;
  bool pressed(gather::MemoryUse use) noexcept override;
  /// Returns whether `use` may keep idle memory for later: it has no more than is guaranteed to it.  With
  /// lock() held.
  bool may_keep(gather::MemoryUse use) const noexcept {
    return chunks_.budget().used(use) <= chunks_.budget().guaranteed(use);
  }
  void begin_wait() noexcept override;
  void end_wait() noexcept override;
  /// A function that gives back up to `bytes` of idle memory.  It is called with no lock held, when memory
  /// was refused to a walk or to prefetching, or when the process uses more than it may.
  using Reclaim = void (*)(std::uint64_t bytes) noexcept;
  void set_reclaim(Reclaim call) noexcept { reclaim_.store(call, std::memory_order_release); }
  /// Returns how many forks lie between this process and the one that made the Prefetcher.  Users detect
  /// with it what belongs to the parent.
  unsigned forks() const noexcept { return forks_.load(std::memory_order_relaxed); }

  /// Returns how many bytes of private memory are in use.
  std::uint64_t memory_used() noexcept;

  // For a fork: lock() before, unlock() in the parent, after_fork_in_child() in the child.  Other state of
  // files that must agree with the Prefetcher's uses this lock, too (ahead/unmapped_file.h).  It is
  // not held during a read or a wait.
  void lock() noexcept { mutex_.lock(); }
  void unlock() noexcept { mutex_.unlock(); }
  /// Makes windows mappings of their files again, so that the child pins none of the parent's memory.
  /// Forgets the parent's reads and thread.  Releases the lock.
  void after_fork_in_child() noexcept;

 private:
  friend class IoWorker;

  Prefetcher() = default;
  bool ensure_worker() noexcept;
  /// Waits for a while, with the lock released.  `offset`: of the missing data, for the log.
  void wait(Walk& walk, std::unique_lock<SignalSafeMutex>& lock, std::uint64_t offset,
            StallNotice& stall) noexcept;
  void wait_for_others(Walk& walk, ChunkIndex chunk, std::unique_lock<SignalSafeMutex>& lock, Ticket& ticket,
                       StallNotice& stall) noexcept;
  void end_wait(Walk& walk, const StallNotice& stall) noexcept;
  std::shared_ptr<FileCache> join(FileCache& file) noexcept;
  void reclaim(std::uint64_t bytes) noexcept;
  bool has_busy_writer(const FileCache& file) const noexcept;

  // For the worker, with the lock held.
  /// Called when the worker is out of memory: pending requests fall back to page faults.
  void give_up() noexcept;
  bool next_job(ReadJob& job, bool idle);
  /// Gives memory back if other processes need it.  Called without the lock.  Returns after how many ns it
  /// has to be called again; 0: it need not be.
  std::int64_t look_at_memory() noexcept;
  bool memory_is_nearly_full() noexcept;
  /// Returns whether a load of a whole file waits until memory is not nearly full any more.
  bool loads_wait() noexcept;

  SignalSafeMutex mutex_;  // guards all members below
  Schedule schedule_;
  ChunkCache chunks_{schedule_};
  IoWorker* worker_ = nullptr;
  EventCount chunk_read_;  ///< some read_chunk(), or read for an unmapped file, has ended
  std::atomic<unsigned> forks_{0};
  std::atomic<Reclaim> reclaim_{nullptr};
};

}  // namespace lmdbio::window
