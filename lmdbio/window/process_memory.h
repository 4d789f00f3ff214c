// The private memory of the process, which chunks, readers, index builds, prefetched keys and prepared
// batches share.
#pragma once

#include <atomic>
#include <cstdint>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/gather/memory_source.h"
#include "lmdbio/window/chunk_cache.h"

namespace lmdbio::window {

class IoWorker;

/// Supplies private memory within one limit (LMDBIO_MEMORY), and evicts chunks to free memory.  Part of the
/// Prefetcher, whose lock it uses.  Any thread, without the lock unless stated otherwise.
class ProcessMemory final : public gather::MemorySource {
 public:
  /// `mutex` guards `chunks` and `worker`.  `worker` is the thread that gives memory back later; null while
  /// there is none.
  ProcessMemory(SignalSafeMutex& mutex, ChunkCache& chunks, IoWorker* const& worker) noexcept
      : mutex_(mutex), chunks_(chunks), worker_(worker) {}

  std::uint64_t limit() const noexcept override { return chunks_.budget().limit(); }
  void join(gather::MemoryUse use) noexcept override;
  void leave(gather::MemoryUse use) noexcept override;
  /// See MemorySource.  With Urgency::ahead, `use` gets at most its share of the limit.
  bool take(gather::MemoryUse use, std::uint64_t bytes, gather::Urgency urgency) noexcept override;
  void count(gather::MemoryUse use, std::uint64_t bytes) noexcept override;
  void give_back(gather::MemoryUse use, std::uint64_t bytes) noexcept override;
  std::uint64_t room_for_needs() noexcept override;
  std::uint64_t beyond_guaranteed(gather::MemoryUse use) noexcept override;
  bool could_take(gather::MemoryUse use, std::uint64_t bytes, std::uint64_t of_readers) noexcept override;
  bool pressed(gather::MemoryUse use) noexcept override;
  void begin_wait() noexcept override;
  void end_wait() noexcept override;

  /// Returns how many bytes of private memory are in use.
  std::uint64_t used() noexcept;
  /// Returns whether more memory is in use than the limit.  This is possible because the limit does not
  /// apply to the memory of files that cannot be mapped.  With the Prefetcher's lock held.
  bool over_limit() const noexcept { return chunks_.budget().over_limit(); }
  /// Returns whether `use` may keep idle memory for later.  It may if it has no more memory than is
  /// guaranteed to it.  With the Prefetcher's lock held.
  bool may_keep(gather::MemoryUse use) const noexcept {
    return chunks_.budget().used(use) <= chunks_.budget().guaranteed(use);
  }

  /// A function that gives back up to `bytes` of idle memory.  It is called with no lock held, when memory
  /// was refused to a walk or to prefetching, or when the process uses more than it may.
  using Reclaim = void (*)(std::uint64_t bytes) noexcept;
  void set_reclaim(Reclaim call) noexcept { reclaim_.store(call, std::memory_order_release); }
  /// Calls the function of set_reclaim(), if there is one.
  void reclaim(std::uint64_t bytes) noexcept;

  /// Gives memory back if other processes need it.  The I/O thread calls it.  Returns the time in ns after
  /// which it must be called again; 0: no further call is needed.
  std::int64_t look() noexcept;
  bool is_nearly_full() noexcept;

 private:
  SignalSafeMutex& mutex_;
  ChunkCache& chunks_;
  IoWorker* const& worker_;
  std::atomic<Reclaim> reclaim_{nullptr};
};

}  // namespace lmdbio::window
