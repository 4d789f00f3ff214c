// Reads ahead for all walks of the process.  Takes the plans of walks and reads data into chunks or into the
// page cache, within one memory limit.
//
// One lock guards the state of its parts: walks and their plans (Schedule), chunks and memory (ChunkCache),
// and which parts of files have been read.  No thread reads a database file or waits while it holds the lock.
// The only system calls under the lock publish and evict chunks, or read files in /proc and of cgroups to
// find out how much memory is left.  One thread does the reads (IoWorker).  This thread starts with the first
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
#include "lmdbio/window/process_memory.h"
#include "lmdbio/window/read_job.h"
#include "lmdbio/window/read_plan.h"
#include "lmdbio/window/schedule.h"
#include "lmdbio/window/walk.h"
#include "lmdbio/window/window_file.h"

namespace lmdbio::window {

class IoWorker;

/// Reads ahead for walks.  One per process.  Any thread, unless stated otherwise.
class Prefetcher {
 public:
  /// Returns the Prefetcher of the process.  The first call makes it; it is never destroyed.  Returns
  /// nullptr if out of memory.
  static Prefetcher* get() noexcept;
  /// Returns nullptr until get() has been called.
  static Prefetcher* existing() noexcept;
  /// Called around a fork.  Otherwise a child could inherit an incomplete Prefetcher and a lock that another
  /// thread holds.
  static void lock_creation() noexcept;
  static void unlock_creation() noexcept;

  /// Returns the WindowFile of `window`.  The first call for a window creates it.  `used_bytes`: the part of
  /// the file that the database uses.  `snapshot`: the newest known one.  After an error the file cannot be
  /// read ahead.
  Result<std::shared_ptr<WindowFile>> open(const std::shared_ptr<Window>& window, const Origin& origin,
                                           const char* name, std::uint64_t used_bytes,
                                           std::uint64_t snapshot) noexcept;
  /// Ends one use of the file; each environment that opened it calls this once.  After the last call, page
  /// faults read all data.  Waits for reads in flight if this was the last file.
  void close(const std::shared_ptr<WindowFile>& file) noexcept;
  /// Called when a transaction of `snapshot` begins in `window`, before it reads anything.  Evicts chunks of
  /// older snapshots.  `file_bytes`: the current size of the file.  `used_bytes`: the part of it that the
  /// database uses.  On ENOMEM the transaction must not begin.
  Status advance(const Window& window, std::uint64_t snapshot, std::uint64_t file_bytes,
                 std::uint64_t used_bytes) noexcept;

  void add(Walk& walk) noexcept;
  void remove(Walk& walk) noexcept;
  /// Replaces the walk's plan.  Returns a ticket to wait for what the walk needs now.  A walk that needs
  /// nothing may drop the ticket.
  Ticket submit(Walk& walk, const ReadPlan& plan) noexcept;
  /// Waits until the data that the plan needs is resident or is left to page faults.  Returns an errno if the
  /// read of this data failed; the next plan that needs the data tries again.
  Status wait(Ticket& ticket) noexcept;
  Status wait(Ticket&& ticket) noexcept { return wait(ticket); }
  /// Returns whether a part of `extent` is being read.
  bool is_reading(const WindowFile& file, const Extent& extent) noexcept;
  /// Forgets which extents the walk has requested, so that its next plan requests them again.
  void forget_extents(Walk& walk) noexcept;
  /// Returns how many bytes of the chunk the walk has requested as extents.  With lock() held.
  std::uint64_t asked_bytes(const Walk& walk, ChunkIndex chunk) const noexcept;
  /// Returns how many chunks a plan may have.
  std::size_t most_chunks(const WindowFile& file) const noexcept;

  /// Reads and publishes `chunk` in the calling thread, for files without a mapping to fall back on.  Waits
  /// if another thread is reading it.  EIO: the chunk lies beyond the end of the file.  EBADF: the file was
  /// closed.  ENOMEM: out of memory, or the chunk could not be published.  Other errors are those of the
  /// read.
  Status read_chunk(WindowFile& file, ChunkIndex chunk) noexcept;

  /// Gives up the image that the window maps, because it cannot be read.  From then on all reads are from the
  /// database file.  Returns false if the window still maps the image; true if it maps the database file.
  bool leave_image(WindowFile& file) noexcept;

  /// Adds (`on`) or removes a walk that benefits from the kernel's read-ahead, in a file that is mapped
  /// with MDB_NORDAHEAD.  The mapping has read-ahead as long as there is such a walk.
  void use_readahead(WindowFile& file, bool on) noexcept;
  /// Loads the first `used_bytes` of `file` in the background, into the page cache or as chunks.  Returns
  /// false if they fit nowhere or the I/O thread cannot be started.  Requires that lock() is held and no load
  /// of the file is in progress.
  bool begin_whole_load(WindowFile& file, std::uint64_t used_bytes) noexcept;
  /// As begin_whole_load(), but only if the file is read through other sources, and as chunks.
  bool begin_load_from_sources(WindowFile& file, std::uint64_t used_bytes) noexcept;
  /// Returns whether a program that needs a part of `chunks` should wait for all of them, rather than read
  /// only what it needs: the cache on local disk has them in an image that is not mapped, and there is memory
  /// for all chunks of the first `used_bytes` of the file.
  bool takes_chunks_from_cache(WindowFile& file, const ChunkRange& chunks, std::uint64_t used_bytes) noexcept;
  /// Records values that a walk under a snapshot of `used_bytes` has passed by; each value is given by an
  /// address inside it.  If the program reads them later, outside of calls, the file is loaded as a whole.
  /// Does nothing on local file systems, where reads are fast.
  void watch_late_use(WindowFile& file, std::span<const std::byte* const> values,
                      std::uint64_t used_bytes) noexcept;

  /// Drops all chunks of a window without a mapping, including chunks that are being read.  With lock() held;
  /// no transaction reads the window, and none begins while the lock is held.  Returns false if there is no
  /// memory for that; the chunks stay then.
  bool empty(WindowFile& file) noexcept;
  /// Returns the object that supplies the private memory of the process, for chunks and for other uses.
  ProcessMemory& memory() noexcept { return memory_; }
  /// Returns how many forks lie between this process and the one that made the Prefetcher.  This number shows
  /// which objects belong to the parent process.
  unsigned forks() const noexcept { return forks_.load(std::memory_order_relaxed); }

  // For a fork: lock() before, unlock() in the parent, after_fork_in_child() in the child.  This lock also
  // guards other state of files that must agree with the Prefetcher's state (ahead/unmapped_file.h).  It is
  // not held during a read or a wait.
  void lock() noexcept { mutex_.lock(); }
  void unlock() noexcept { mutex_.unlock(); }
  /// Turns windows back into mappings of their files, so that the child pins none of the parent's memory.
  /// Forgets the parent's reads and thread.  Releases the lock.
  void after_fork_in_child() noexcept;

 private:
  friend class IoWorker;

  Prefetcher() = default;
  bool ensure_worker() noexcept;
  /// Waits for a while, with the lock released.  `offset`: byte offset of the missing data, for the log.
  void wait(Walk& walk, std::unique_lock<SignalSafeMutex>& lock, std::uint64_t offset,
            StallNotice& stall) noexcept;
  void wait_for_others(Walk& walk, ChunkIndex chunk, std::unique_lock<SignalSafeMutex>& lock, Ticket& ticket,
                       StallNotice& stall) noexcept;
  void end_wait(Walk& walk, const StallNotice& stall) noexcept;
  std::shared_ptr<WindowFile> join(WindowFile& file) noexcept;

  // For the worker, with the lock held.
  /// Called when the worker is out of memory.  Pending requests fall back to page faults.
  void give_up() noexcept;
  bool next_job(ReadJob& job, bool idle);
  /// Returns whether a load of a whole file is waiting because memory is nearly full.
  bool loads_wait() noexcept;

  SignalSafeMutex mutex_;  // guards all members below
  Schedule schedule_;
  ChunkCache chunks_{schedule_};
  IoWorker* worker_ = nullptr;
  ProcessMemory memory_{mutex_, chunks_, worker_};
  EventCount chunk_read_;  ///< some read_chunk(), or read for an unmapped file, has ended
  std::atomic<unsigned> forks_{0};
};

}  // namespace lmdbio::window
