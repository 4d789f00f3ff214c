// Where readers and index builds get private memory from: the process's budget, or a double in tests.
#pragma once

#include <cstdint>

#include "lmdbio/cache/memory_budget.h"

namespace lmdbio::cache {

/// How much is done for a request.
enum class Urgency : unsigned char {
  ahead,   ///< what it can do without: chunks that no walk has planned give way
  needed,  ///< a program waits: planned chunks give way, but for those guaranteed to walks
  last,    ///< nothing else gives way any more: these too
};

/// Any thread.  Takes a lock, under which no reader's lock is taken.
class MemorySource {
 public:
  /// Bytes, all uses together.
  virtual std::uint64_t memory_limit() const noexcept = 0;
  /// See MemoryBudget.
  virtual void join(MemoryUse use) noexcept = 0;
  virtual void leave(MemoryUse use) noexcept = 0;
  /// False: there is no room.
  virtual bool take(MemoryUse use, std::uint64_t bytes, Urgency urgency) noexcept = 0;
  /// Counts what is there already.
  virtual void count(MemoryUse use, std::uint64_t bytes) noexcept = 0;
  virtual void give_back(MemoryUse use, std::uint64_t bytes) noexcept = 0;
  /// Bytes that a take() of Urgency::last gets at the latest when the reads of chunks in flight have ended.
  virtual std::uint64_t room_for_needs() noexcept = 0;
  /// take() of Urgency::last would then succeed if, besides, readers gave `of_readers` bytes back.
  virtual bool could_take(MemoryUse use, std::uint64_t bytes, std::uint64_t of_readers) noexcept = 0;
  /// Bytes that `use` has, and that are not guaranteed to it.
  virtual std::uint64_t beyond_guaranteed(MemoryUse use) noexcept = 0;
  virtual bool pressed(MemoryUse use) noexcept = 0;
  virtual void begin_wait() noexcept = 0;
  virtual void end_wait() noexcept = 0;

 protected:
  ~MemorySource() = default;
};

}  // namespace lmdbio::cache
