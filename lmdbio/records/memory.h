// What all readers of a process have in common: the memory that they share, who waits for it, and the streams
// whose read-ahead can give way.
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
#include "lmdbio/cache/memory_source.h"

namespace lmdbio::records {

using cache::MemoryUse;
using cache::Urgency;

class BufferPool;
class Stream;

/// Has memory that it can give back.  Any thread.
class MemoryHolder {
 public:
  /// Of the process's memory, bytes that come back if nobody holds on to what is held by nobody.
  virtual std::uint64_t releasable_bytes() const noexcept = 0;
  /// Bytes that are in use and that nobody holds.
  virtual std::uint64_t ahead_bytes() const noexcept = 0;
  /// Gives back memory that is not in use, up to about so many bytes; how many it were.  Takes no lock that
  /// is held while memory is taken.
  virtual std::uint64_t unmap_free(std::uint64_t bytes) noexcept = 0;

 protected:
  ~MemoryHolder() = default;
};

/// Any thread.  Of the process that made it: a forked child has one of its own.
class Memory {
 public:
  /// Null: only the readers' own limits count.
  explicit Memory(cache::MemorySource* source = nullptr) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() = default;
  /// The calling process's, of `source`, which is never destroyed.  May throw bad_alloc.
  static std::shared_ptr<Memory> of_process(cache::MemorySource& source);
  /// Up to so many bytes of buffers that nobody uses are unmapped, of of_process(), if that was called: of
  /// what readers have beyond their guaranteed part, which stays theirs.
  static void reclaim(std::uint64_t bytes) noexcept;

  /// Bytes; without a source as many as there are.
  std::uint64_t limit() const noexcept { return source_ != nullptr ? source_->memory_limit() : UINT64_MAX; }
  bool take(MemoryUse use, std::uint64_t bytes, Urgency urgency) noexcept {
    return source_ == nullptr || source_->take(use, bytes, urgency);
  }
  /// The same; if there is no room readers give way: buffers that nobody uses, and for Urgency::last also
  /// what streams have read ahead, which may wait for reads in flight.  0 bytes: is what was counted within
  /// the limit?  Urgency::last also waits until streams that are in a call leave it; `cancelled` (may be
  /// null) ends that.  The caller holds no lock of a reader; for Urgency::ahead, none but a LeafCache's.
  bool take_of_readers(MemoryUse use, std::uint64_t bytes, Urgency urgency,
                       const std::atomic<bool>* cancelled = nullptr) noexcept;
  void count(MemoryUse use, std::uint64_t bytes) noexcept {
    if (source_ != nullptr && bytes != 0) source_->count(use, bytes);
  }
  /// Nothing in a process other than that which made this.
  void give_back(MemoryUse use, std::uint64_t bytes) noexcept;
  void join(MemoryUse use) noexcept {
    if (source_ != nullptr) source_->join(use);
  }
  void leave(MemoryUse use) noexcept;
  /// Others lack what is theirs: readers keep no buffers, and read nothing ahead, beyond their own part.
  bool pressed() noexcept { return source_ != nullptr && source_->pressed(MemoryUse::readers); }
  /// take() of Urgency::last would succeed if all chunks, and all buffers that nobody holds, gave way.  May
  /// be wrong while others take memory without a Need.
  bool could_have(MemoryUse use, std::uint64_t bytes) noexcept;
  /// There are buffers in use that nobody holds.
  bool is_read_ahead() noexcept;
  /// For an ENOMEM: " (LMDBIO_MEMORY: ...)"; empty without a source.  May throw bad_alloc.
  std::string reason() const;

  /// Of `bytes`, what another use than readers gains by so many that these give back.
  std::uint64_t useful(std::uint64_t bytes) noexcept {
    return source_ == nullptr ? bytes : std::min(bytes, source_->beyond_guaranteed(MemoryUse::readers));
  }
  /// Unmaps buffers that nobody uses, of all holders but `but`, up to so many bytes.  False: there are none.
  /// The caller holds no lock of a reader.
  bool drop_free(const MemoryHolder* but, std::uint64_t bytes) noexcept;
  /// May throw bad_alloc.
  void add(MemoryHolder& holder);
  void remove(MemoryHolder& holder) noexcept;

  /// While one exists, somebody waits for memory that another reader, or a chunk, has: nothing is given out
  /// for read-ahead in the whole process.
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
  /// Notified when a buffer of a pool with needs comes back, or is held or not held any more.
  EventCount& changes() noexcept { return changes_; }

  std::atomic<unsigned> streams{0};   ///< that are open
  std::mutex mutex;                   ///< guards what follows, and the list of holders
  std::vector<Stream*> open_streams;  ///< the next one to drop read-ahead comes first

 private:
  cache::MemorySource* const source_;
  const pid_t pid_;
  std::atomic<unsigned> needs_{0};
  EventCount changes_;
  std::vector<MemoryHolder*> holders_;
};

/// Bytes that were taken, until the object ends.
class TakenMemory {
 public:
  TakenMemory() noexcept = default;
  TakenMemory(TakenMemory&& other) noexcept
      : memory_(std::move(other.memory_)), use_(other.use_), bytes_(std::exchange(other.bytes_, 0)) {}
  TakenMemory& operator=(TakenMemory&& other) noexcept;
  ~TakenMemory() { clear(); }

  std::uint64_t bytes() const noexcept { return bytes_; }
  void clear() noexcept;
  /// So many bytes instead of those before, as Memory::take_of_readers.  False: there is no room, all is as
  /// it was.  `memory` may be null: nothing is counted.
  bool take(const std::shared_ptr<Memory>& memory, MemoryUse use, std::uint64_t bytes, Urgency urgency,
            const std::atomic<bool>* cancelled = nullptr) noexcept;
  /// The same for what is there already.
  void count(const std::shared_ptr<Memory>& memory, MemoryUse use, std::uint64_t bytes) noexcept;

 private:
  void set(const std::shared_ptr<Memory>& memory, MemoryUse use, std::uint64_t bytes) noexcept;

  std::shared_ptr<Memory> memory_;
  MemoryUse use_ = MemoryUse::readers;
  std::uint64_t bytes_ = 0;
};

}  // namespace lmdbio::records
