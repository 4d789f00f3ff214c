// Memory for batches: buffers that are used again and again, within a reader's limit and the process's.  What
// a program waits for has precedence over what is read ahead.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "lmdbio/base/futex.h"
#include "lmdbio/base/mapping.h"
#include "lmdbio/records/memory.h"

namespace lmdbio::records {

class BufferPool;

/// The pool's record of one buffer.
struct BufferSlot {
  Mapping memory;
  std::size_t asked = 0;           ///< bytes that its user may write to, in whole pages
  std::size_t counted = 0;         ///< bytes that count against the limit: all, or `asked`
  std::atomic<unsigned> holds{0};  ///< 0 while the buffer is in use: it holds read-ahead
};

/// One buffer, page-aligned; from 2 MiB on 2 MiB-aligned and of huge pages where there are any.  Goes back to
/// its pool at the end, from any thread.  Bytes are as the last user left them.
///
/// A buffer is read-ahead, which its owner can drop, unless somebody holds it: a batch that the program has,
/// or a call that waits for its bytes.
class Buffer {
 public:
  Buffer() noexcept = default;
  Buffer(Buffer&&) noexcept = default;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const noexcept { return pool_ != nullptr ? slot_->memory.data() : nullptr; }
  /// At least what was asked for; bytes beyond that are not to be written to.
  std::size_t size() const noexcept { return pool_ != nullptr ? slot_->memory.size() : 0; }

  /// Any thread; each hold() is followed by one unhold().  Without a buffer: nothing.
  void hold() const noexcept;
  void unhold() const noexcept;
  bool held() const noexcept { return pool_ != nullptr && slot_->holds.load() != 0; }

 private:
  friend class BufferPool;
  using Slot = std::list<BufferSlot>::iterator;
  Buffer(std::shared_ptr<BufferPool> pool, Slot slot) noexcept : pool_(std::move(pool)), slot_(slot) {}

  std::shared_ptr<BufferPool> pool_;
  Slot slot_;
};

/// What take() is asked for.
struct MemoryRequest {
  std::uint64_t most = 0;  ///< bytes that may be in use then; the limit if that is less
  std::size_t least = 0;   ///< bytes; a smaller buffer is given if there is no room for one of that size
  bool needed = false;     ///< a program waits for it; otherwise it is read-ahead
  Urgency urgency = Urgency::needed;  ///< of what is needed
  /// Set by a failed take() of what is needed: it would have succeeded without read-ahead of this pool.
  bool ahead_in_the_way = false;
  /// Likewise: without read-ahead of all pools of the process, and without chunks.
  bool others_in_the_way = false;
};

/// Any thread.  Lives as long as its buffers do.  In a forked child nothing is taken; what an inherited
/// buffer leaves is unmapped there.
class BufferPool final : public MemoryHolder, public std::enable_shared_from_this<BufferPool> {
 public:
  struct Counters {
    std::uint64_t made = 0;        ///< buffers so far
    std::uint64_t bytes = 0;       ///< of all that exist
    std::uint64_t used_bytes = 0;  ///< of those that are in use
    std::uint64_t most_bytes = 0;  ///< that ever existed at a time
  };

  /// Of the process's memory, what each pool has as long as it lives, bytes.
  static constexpr std::uint64_t kLeast = std::uint64_t{1} << 20;

  /// `limit`: bytes, for all buffers together.  `memory`: where they come from; by default there is only this
  /// limit.  May throw bad_alloc.
  explicit BufferPool(std::uint64_t limit, std::shared_ptr<Memory> memory = nullptr);
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;
  ~BufferPool();

  /// A free buffer or a new one of at least `bytes` (above 0), held by nobody.  ENOMEM: the system's, or
  /// those in use would have more than `most` bytes, or the request is read-ahead while somebody waits for
  /// memory.
  Result<Buffer> take(std::size_t bytes, MemoryRequest& request) noexcept;
  /// Takes kLeast of the process's memory.  Once, before all else.  False: there is no room.
  bool take_least() noexcept;
  std::uint64_t limit() const noexcept { return limit_; }
  Counters counters() const noexcept;
  /// Bytes of buffers that somebody holds.
  std::uint64_t held_bytes() const noexcept;
  /// Bytes of buffers that are in use and that nobody holds.
  std::uint64_t ahead_bytes() const noexcept override;
  /// Of the process's memory, bytes that come back if nobody holds on to what is held by nobody: read-ahead,
  /// free buffers, those that are being unmapped.
  std::uint64_t releasable_bytes() const noexcept override;
  /// Unmaps free buffers up to about so many bytes; how many it were.
  std::uint64_t unmap_free(std::uint64_t bytes) noexcept override;
  const std::shared_ptr<Memory>& memory() const noexcept { return memory_; }

  /// While one exists, somebody waits for memory: nothing is given out for read-ahead.
  class Need {
   public:
    explicit Need(BufferPool& pool) noexcept : pool_(pool) { pool_.needs_.fetch_add(1); }
    Need(const Need&) = delete;
    Need& operator=(const Need&) = delete;
    ~Need() { pool_.needs_.fetch_sub(1); }

   private:
    BufferPool& pool_;
  };
  /// How many there are, the process's included.
  unsigned needs() const noexcept { return needs_.load() + memory_->needs(); }
  /// Notified while there is a Need, when buffers come back or are held or not held any more.
  EventCount& changes() noexcept { return memory_->changes(); }
  void notify_needs() noexcept {
    if (needs() != 0) changes().notify();
  }

  /// The size of a buffer for `bytes`: few different ones, so that they fit again.
  static std::uint64_t buffer_bytes(std::uint64_t bytes) noexcept;

 private:
  friend class Buffer;
  using Slots = std::list<BufferSlot>;
  void give_back(Slots::iterator slot) noexcept;
  Result<Mapping> make(std::size_t bytes) noexcept;
  // The mutex is held.
  Slots::iterator find_free(std::size_t bytes) noexcept;
  Buffer give(Slots::iterator slot, std::size_t bytes) noexcept;
  Result<Buffer> give_new(std::size_t size, std::size_t bytes);
  Result<Buffer> give_new_or_trim(std::size_t size, std::size_t bytes) noexcept;
  bool drop_free(std::uint64_t size, std::uint64_t limit) noexcept;
  void drop_slack(std::uint64_t size, std::uint64_t limit) noexcept;
  std::uint64_t grant(std::uint64_t size, bool needed, Urgency urgency) noexcept;
  void trim() noexcept;
  std::uint64_t used_bytes(bool held) const noexcept;

  const std::uint64_t limit_;
  const std::shared_ptr<Memory> memory_;
  const pid_t pid_;
  std::atomic<unsigned> needs_{0};
  mutable std::mutex mutex_;  ///< guards what follows, but for the slots' holds
  std::unique_ptr<Slots> free_, used_;
  Counters counters_;                      ///< of bytes that count
  std::uint64_t least_ = 0, granted_ = 0;  ///< of the process's memory: what stays, what was taken
};

}  // namespace lmdbio::records
