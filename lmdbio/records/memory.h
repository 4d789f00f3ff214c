// Manages the memory that all readers of a process share.  Knows the callers that wait for memory, and the
// streams whose read-ahead can be dropped.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/base/futex.h"
#include "lmdbio/gather/memory_source.h"

namespace lmdbio::records {

using gather::MemoryUse;
using gather::Urgency;

class BufferPool;
class Stream;

/// Interface of objects that own memory and can give it back.  Any thread.
class MemoryHolder {
 public:
  /// Returns how many bytes the process's memory gets back once all buffers that are not held are returned.
  virtual std::uint64_t releasable_bytes() const noexcept = 0;
  /// Returns the bytes of buffers that are in use and not held.
  virtual std::uint64_t ahead_bytes() const noexcept = 0;
  /// Gives back unused memory, about `bytes` bytes or less.  Returns the bytes given back.  Must not take a
  /// lock that is held during calls of Memory::take().
  virtual std::uint64_t unmap_free(std::uint64_t bytes) noexcept = 0;

 protected:
  ~MemoryHolder() = default;
};

/// The readers' access to the process's memory.  Any thread.  Each process has its own object, also a forked
/// child.
class Memory {
 public:
  /// `source`: the process's memory.  If it is null, only the readers' own limits apply.
  explicit Memory(gather::MemorySource* source = nullptr) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() = default;
  /// Returns the calling process's object for `source`, which is never destroyed.  May throw bad_alloc.
  static std::shared_ptr<Memory> of_process(gather::MemorySource& source);
  /// Unmaps up to `bytes` bytes of free buffers of the calling process's object, if of_process() has made
  /// one.  Readers keep the memory that is guaranteed to them.
  static void reclaim(std::uint64_t bytes) noexcept;

  /// Returns the limit in bytes; UINT64_MAX without a source.
  std::uint64_t limit() const noexcept { return source_ != nullptr ? source_->limit() : UINT64_MAX; }
  /// Takes `bytes` bytes.  Returns false if there is no room.  Does not release memory of readers.
  bool take(MemoryUse use, std::uint64_t bytes, Urgency urgency) noexcept {
    return source_ == nullptr || source_->take(use, bytes, urgency);
  }
  /// Takes `bytes` bytes, like take(), and releases readers' memory if there is no room.  It unmaps free
  /// buffers.  With Urgency::last, it also drops read-ahead of streams.  It may then wait for reads in
  /// flight, and for streams to leave their current call.  `cancelled`, if not null, ends the wait.  With 0
  /// bytes, the function checks whether the bytes counted so far are within the limit.  The caller must not
  /// hold a lock of a reader, but may hold a LeafCache's lock with Urgency::ahead.
  bool take_of_readers(MemoryUse use, std::uint64_t bytes, Urgency urgency,
                       const std::atomic<bool>* cancelled = nullptr) noexcept;
  /// Counts memory that the caller already has, even beyond the limit.
  void count(MemoryUse use, std::uint64_t bytes) noexcept {
    if (source_ != nullptr && bytes != 0) source_->count(use, bytes);
  }
  /// Gives back `bytes` bytes.  Does nothing in a forked child that inherited this object.
  void give_back(MemoryUse use, std::uint64_t bytes) noexcept;
  void join(MemoryUse use) noexcept {
    if (source_ != nullptr) source_->join(use);
  }
  void leave(MemoryUse use) noexcept;
  /// Returns true if two conditions hold: readers have more memory than is guaranteed to them, and another
  /// use lacks its guaranteed memory or a caller waits.  Readers must then keep no free buffers and no
  /// read-ahead beyond their guaranteed memory.
  bool pressed() noexcept { return source_ != nullptr && source_->pressed(MemoryUse::readers); }
  /// Returns true if take() with Urgency::last would succeed after all chunks and all buffers that are not
  /// held were dropped.  The result may be wrong while other callers take memory without a Need.
  bool could_have(MemoryUse use, std::uint64_t bytes) noexcept;
  /// Returns true if there is read-ahead: buffers in use that are not held.
  bool is_read_ahead() noexcept;
  /// Returns text for an ENOMEM message, " (LMDBIO_MEMORY ...)"; empty without a source.  May throw
  /// bad_alloc.
  std::string reason() const;

  /// Returns how many bytes other uses can gain at most if readers give back `bytes` bytes.
  std::uint64_t useful(std::uint64_t bytes) noexcept {
    return source_ == nullptr ? bytes : std::min(bytes, source_->beyond_guaranteed(MemoryUse::readers));
  }
  /// Unmaps free buffers of all holders except `but`, about `bytes` bytes at most.  Returns false if there
  /// are no free buffers.  The caller must not hold a lock of a reader.
  bool drop_free(const MemoryHolder* but, std::uint64_t bytes) noexcept;
  /// Adds a holder.  The holder must call remove() before it is destroyed.  May throw bad_alloc.
  void add(MemoryHolder& holder);
  void remove(MemoryHolder& holder) noexcept;

  /// Marks that a caller waits for memory of another reader or of a chunk.  While a Need exists, no pool of
  /// the process gives out buffers for read-ahead.
  class Need {
   public:
    explicit Need(Memory& memory) noexcept;
    Need(const Need&) = delete;
    Need& operator=(const Need&) = delete;
    ~Need();

   private:
    Memory& memory_;
  };
  unsigned needs() const noexcept { return needs_.load(); }
  /// Returns the event that is notified when a pool with needs gets a buffer back, or when one of its buffers
  /// is held or released.
  EventCount& changes() noexcept { return changes_; }

  std::atomic<unsigned> streams{0};   ///< open streams
  std::mutex mutex;                   ///< guards the members below and the list of holders
  std::vector<Stream*> open_streams;  ///< streams, in the order in which they drop read-ahead

 private:
  gather::MemorySource* const source_;
  const pid_t pid_;
  std::atomic<unsigned> needs_{0};
  EventCount changes_;
  std::vector<MemoryHolder*> holders_;
};

/// Owns bytes of the process's memory.  The destructor gives them back.
class TakenMemory {
 public:
  TakenMemory() noexcept = default;
  TakenMemory(TakenMemory&& other) noexcept
      : memory_(std::move(other.memory_)), use_(other.use_), bytes_(std::exchange(other.bytes_, 0)) {}
  TakenMemory& operator=(TakenMemory&& other) noexcept;
  ~TakenMemory() { clear(); }

  std::uint64_t bytes() const noexcept { return bytes_; }
  /// Gives back all bytes.
  void clear() noexcept;
  /// Changes the number of bytes taken to `bytes`.  Takes more memory by Memory::take_of_readers().  Returns
  /// false if there is no room; nothing changes then.  Counts nothing if `memory` is null.
  bool take(const std::shared_ptr<Memory>& memory, MemoryUse use, std::uint64_t bytes, Urgency urgency,
            const std::atomic<bool>* cancelled = nullptr) noexcept;
  /// Sets the number of bytes to `bytes`, for memory that the caller already has, even beyond the limit.
  void count(const std::shared_ptr<Memory>& memory, MemoryUse use, std::uint64_t bytes) noexcept;

 private:
  void set(const std::shared_ptr<Memory>& memory, MemoryUse use, std::uint64_t bytes) noexcept;

  std::shared_ptr<Memory> memory_;
  MemoryUse use_ = MemoryUse::readers;
  std::uint64_t bytes_ = 0;
};

}  // namespace lmdbio::records
