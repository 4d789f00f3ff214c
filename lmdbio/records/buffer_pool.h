// A pool of reusable buffers for batches.  Its memory has a limit per reader and per process.  Buffers that a
// program waits for take precedence over read-ahead.
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

/// The pool's entry for one buffer.
struct BufferSlot {
  Mapping memory;
  std::size_t asked = 0;           ///< bytes that the user of the buffer may write, rounded up to whole pages
  std::size_t counted = 0;         ///< bytes that count against the limit: the buffer's size, or `asked`
  std::atomic<unsigned> holds{0};  ///< if 0, a buffer in use is read-ahead
};

/// One page-aligned buffer.  Buffers of 2 MiB or more are aligned to 2 MiB and use huge pages where the
/// system has them.  The destructor returns the buffer to its pool; any thread may call it.  A reused buffer
/// still contains the bytes of its last user.
///
/// A buffer is held while a batch of the program uses it, or while a call waits for its bytes.  A buffer in
/// use that is not held is read-ahead; its owner can drop it.
class Buffer {
 public:
  Buffer() noexcept = default;
  Buffer(Buffer&&) noexcept = default;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const noexcept { return pool_ != nullptr ? slot_->memory.data() : nullptr; }
  /// Returns the size of the buffer, which is at least the number of bytes requested.  Do not write beyond
  /// the bytes requested.
  std::size_t size() const noexcept { return pool_ != nullptr ? slot_->memory.size() : 0; }

  /// Hold and release the buffer.  Call unhold() once for each hold().  Any thread.  Both functions do
  /// nothing if this object has no buffer.
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

/// The parameters of BufferPool::take(), and the reasons for its failure.
struct MemoryRequest {
  std::uint64_t most = 0;  ///< upper limit for bytes in use, this buffer included; at most the pool's limit
  std::size_t least = 0;   ///< preferred size in bytes; the buffer is smaller if there is no room
  bool needed = false;     ///< true: a program waits for the buffer; false: it is for read-ahead
  Urgency urgency = Urgency::needed;  ///< if `needed` is true
  /// Set if take() of a needed buffer fails, but would succeed without this pool's read-ahead.
  bool ahead_in_the_way = false;
  /// Set if take() of a needed buffer fails, but would succeed without cached chunks and without the
  /// read-ahead of all pools of the process.
  bool others_in_the_way = false;
};

/// A pool of buffers.  Any thread.  The pool lives as long as its buffers.  In a forked child, take()
/// fails, and an inherited buffer is unmapped when it is returned.
class BufferPool final : public MemoryHolder, public std::enable_shared_from_this<BufferPool> {
 public:
  struct Counters {
    std::uint64_t made = 0;        ///< number of buffers made so far
    std::uint64_t bytes = 0;       ///< bytes of all buffers
    std::uint64_t used_bytes = 0;  ///< bytes of buffers in use
    std::uint64_t most_bytes = 0;  ///< peak of `bytes`
  };

  /// Bytes of the process's memory that are reserved for each pool while it exists.
  static constexpr std::uint64_t kLeast = std::uint64_t{1} << 20;

  /// `limit`: upper limit for the bytes of all buffers together.  `memory`: the process's memory, from which
  /// the pool takes the buffers.  If `memory` is null, only `limit` applies.  May throw bad_alloc.
  explicit BufferPool(std::uint64_t limit, std::shared_ptr<Memory> memory = nullptr);
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;
  ~BufferPool();

  /// Returns a free or a new buffer of at least `bytes` bytes (more than 0).  The buffer is not held.
  /// Errors: ENOMEM if the system or the process has no memory, or if the buffers in use would exceed
  /// request.most bytes.  ENOMEM also for read-ahead while a caller waits for memory.  EINVAL in a forked
  /// child.
  Result<Buffer> take(std::size_t bytes, MemoryRequest& request) noexcept;
  /// Reserves kLeast bytes of the process's memory for this pool.  Call it once, before all other functions.
  /// Returns false if there is no room.
  bool take_least() noexcept;
  std::uint64_t limit() const noexcept { return limit_; }
  Counters counters() const noexcept;
  /// Returns the bytes of buffers that are held.
  std::uint64_t held_bytes() const noexcept;
  /// Returns the bytes of buffers that are in use and not held.
  std::uint64_t ahead_bytes() const noexcept override;
  /// Returns how many bytes the process's memory gets back once all buffers that are not held are returned.
  /// These are read-ahead, free buffers, and buffers that are being unmapped.
  std::uint64_t releasable_bytes() const noexcept override;
  /// Unmaps free buffers, about `bytes` bytes or less in total.  Returns the bytes that the process's memory
  /// got back.
  std::uint64_t unmap_free(std::uint64_t bytes) noexcept override;
  const std::shared_ptr<Memory>& memory() const noexcept { return memory_; }

  /// Marks that a caller waits for memory.  While a Need exists, the pool gives out no buffers for
  /// read-ahead.
  class Need {
   public:
    explicit Need(BufferPool& pool) noexcept : pool_(pool) { pool_.needs_.fetch_add(1); }
    Need(const Need&) = delete;
    Need& operator=(const Need&) = delete;
    ~Need() { pool_.needs_.fetch_sub(1); }

   private:
    BufferPool& pool_;
  };
  /// Returns the number of callers that wait for memory of this pool or of the process.
  unsigned needs() const noexcept { return needs_.load() + memory_->needs(); }
  /// Returns the event that is notified when a buffer is returned, held or released while there is a Need.
  EventCount& changes() noexcept { return memory_->changes(); }
  void notify_needs() noexcept {
    if (needs() != 0) changes().notify();
  }

  /// Returns the size of a buffer for `bytes`.  There are only a few sizes, so that free buffers can be
  /// used again.
  static std::uint64_t buffer_bytes(std::uint64_t bytes) noexcept;

 private:
  friend class Buffer;
  using Slots = std::list<BufferSlot>;
  void give_back(Slots::iterator slot) noexcept;
  Result<Mapping> make(std::size_t bytes) noexcept;
  // The caller of the functions below holds the mutex.
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
  mutable std::mutex mutex_;  ///< guards the members below, but not the slots' `holds`
  std::unique_ptr<Slots> free_, used_;
  Counters counters_;                      ///< `bytes` includes only bytes that count against the limit
  std::uint64_t least_ = 0, granted_ = 0;  ///< bytes of the process's memory that are reserved, and taken
};

}  // namespace lmdbio::records
