// The memory that all readers of a process share, the callers that wait for it, and the streams whose
// read-ahead can be dropped.
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

/// An owner of memory that it can give back.  Any thread.
class MemoryHolder {
 public:
  /// Returns how many bytes of the process's memory come back once all buffers that are not held are
  /// returned.
  virtual std::uint64_t releasable_bytes() const noexcept = 0;
  /// Returns the bytes of buffers that are in use and not held.
  virtual std::uint64_t ahead_bytes() const noexcept = 0;
  /// Gives back memory that is not in use, about `bytes` bytes or less.  Returns the bytes given back.
  /// Takes no lock that is held while memory is taken.
  virtual std::uint64_t unmap_free(std::uint64_t bytes) noexcept = 0;

 protected:
  ~MemoryHolder() = default;
};

/// The readers' access to the process's memory.  Any thread.  It belongs to the process that made it: a
/// forked child makes its own.
class Memory {
 public:
  /// `source`: the process's memory.  With null, only the readers' own limits apply.
  explicit Memory(gather::MemorySource* source = nullptr) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() = default;
  /// Returns the calling process's object for `source`, which is never destroyed.  May throw bad_alloc.
  static std::shared_ptr<Memory> of_process(gather::MemorySource& source);
  /// Unmaps up to `bytes` bytes of free buffers in the object of of_process(), if it exists.  Readers keep
  /// the part of the memory that is guaranteed to them.
  static void reclaim(std::uint64_t bytes) noexcept;

  /// Returns the limit in bytes; UINT64_MAX without a source.
  std::uint64_t limit() const noexcept { return source_ != nullptr ? source_->limit() : UINT64_MAX; }
  /// Takes `bytes` bytes.  Returns false if there is no room.  Does not drop anything of readers.
  bool take(MemoryUse use, std::uint64_t bytes, Urgency urgency) noexcept {
    return source_ == nullptr || source_->take(use, bytes, urgency);
  }
  /// Does the same, and releases readers' memory if there is no room.  It unmaps free buffers.  With
  /// Urgency::last it also drops what streams have read ahead, which may wait for reads in flight and until
  /// streams leave their current call.  `cancelled`, if not null, ends such a wait.  With 0 bytes, it
  /// checks whether the bytes counted so far are within the limit.  The caller holds no lock of a reader;
  /// with Urgency::ahead it may hold a LeafCache's lock.
  bool take_of_readers(MemoryUse use, std::uint64_t bytes, Urgency urgency,
                       const std::atomic<bool>* cancelled = nullptr) noexcept;
  /// Counts memory that the caller has already, even beyond the limit.
  void count(MemoryUse use, std::uint64_t bytes) noexcept {
    if (source_ != nullptr && bytes != 0) source_->count(use, bytes);
  }
  /// Gives back `bytes` bytes.  Does nothing in any process but the one that made this object.
  void give_back(MemoryUse use, std::uint64_t bytes) noexcept;
  void join(MemoryUse use) noexcept {
    if (source_ != nullptr) source_->join(use);
  }
  void leave(MemoryUse use) noexcept;
  /// Returns true if readers have more memory than is guaranteed to them, and if another use lacks its
  /// guaranteed memory or a caller waits.  Readers then keep no free buffers and no read-ahead beyond their
  /// own guaranteed part.
  bool pressed() noexcept { return source_ != nullptr && source_->pressed(MemoryUse::readers); }
  /// Returns true if take() with Urgency::last would succeed once all chunks, and all buffers that are not
  /// held, are dropped.  May be wrong while others take memory without a Need.
  bool could_have(MemoryUse use, std::uint64_t bytes) noexcept;
  /// Returns true if there are buffers in use that are not held.
  bool is_read_ahead() noexcept;
  /// Returns text for an ENOMEM message, " (LMDBIO_MEMORY ...)"; empty without a source.  May throw
  /// bad_alloc.
  std::string reason() const;

  /// Returns how much another use than readers gains, at most, if readers give back `bytes` bytes.
  std::uint64_t useful(std::uint64_t bytes) noexcept {
    return source_ == nullptr ? bytes : std::min(bytes, source_->beyond_guaranteed(MemoryUse::readers));
  }
  /// Unmaps free buffers of all holders except `but`, up to about `bytes` bytes.  Returns false if there
  /// are none.  The caller holds no lock of a reader.
  bool drop_free(const MemoryHolder* but, std::uint64_t bytes) noexcept;
  /// Adds a holder, which calls remove() before it is destroyed.  May throw bad_alloc.
  void add(MemoryHolder& holder);
  void remove(MemoryHolder& holder) noexcept;

  /// Marks that a caller waits for memory that another reader, or a chunk, has.  While a Need exists, no
  /// pool of the process gives out buffers for read-ahead.
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
  /// Notified when a pool with needs gets a buffer back, or when one of its buffers is held or released.
  EventCount& changes() noexcept { return changes_; }

  std::atomic<unsigned> streams{0};   ///< open streams
  std::mutex mutex;                   ///< guards the members below and the list of holders
  std::vector<Stream*> open_streams;  ///< streams, the next one to drop read-ahead first

 private:
  gather::MemorySource* const source_;
  const pid_t pid_;
  std::atomic<unsigned> needs_{0};
  EventCount changes_;
  std::vector<MemoryHolder*> holders_;
};

/// Bytes of the process's memory that the destructor gives back.
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
  /// Changes the number of bytes taken to `bytes`, as Memory::take_of_readers() does.  Returns false if
  /// there is no room; nothing changes then.  With a null `memory`, nothing is counted.
  bool take(const std::shared_ptr<Memory>& memory, MemoryUse use, std::uint64_t bytes, Urgency urgency,
            const std::atomic<bool>* cancelled = nullptr) noexcept;
  /// Does the same for memory that the caller has already, even beyond the limit.
  void count(const std::shared_ptr<Memory>& memory, MemoryUse use, std::uint64_t bytes) noexcept;

 private:
  void set(const std::shared_ptr<Memory>& memory, MemoryUse use, std::uint64_t bytes) noexcept;

  std::shared_ptr<Memory> memory_;
  MemoryUse use_ = MemoryUse::readers;
  std::uint64_t bytes_ = 0;
};

}  // namespace lmdbio::records
