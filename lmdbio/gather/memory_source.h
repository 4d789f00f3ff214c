// The interface through which readers and index builds get private memory: from the process's budget, or
// from a double in tests.
#pragma once

#include <cstdint>

#include "lmdbio/gather/memory_budget.h"

namespace lmdbio::gather {

/// How much is evicted for a request.
enum class Urgency : unsigned char {
  ahead,   ///< memory that the caller can do without: evict chunks that are in no plan
  needed,  ///< a program waits: also evict planned chunks, except those guaranteed to walks
  last,    ///< nothing else can be freed: also evict the guaranteed chunks
};

/// Supplies private memory.  Any thread.  Its functions take a lock, and take no reader's lock while they
/// hold it.
class MemorySource {
 public:
  /// Returns the limit for all uses together, in bytes.
  virtual std::uint64_t limit() const noexcept = 0;
  /// See MemoryBudget.
  virtual void join(MemoryUse use) noexcept = 0;
  virtual void leave(MemoryUse use) noexcept = 0;
  /// Takes memory.  Returns false if there is no room.
  virtual bool take(MemoryUse use, std::uint64_t bytes, Urgency urgency) noexcept = 0;
  /// Counts memory that has been taken already.
  virtual void count(MemoryUse use, std::uint64_t bytes) noexcept = 0;
  virtual void give_back(MemoryUse use, std::uint64_t bytes) noexcept = 0;
  /// Returns how many bytes a take() with Urgency::last can get now, or once the chunk reads in flight have
  /// ended.
  virtual std::uint64_t room_for_needs() noexcept = 0;
  /// Returns whether a take() with Urgency::last would succeed if readers also gave back `of_readers`
  /// bytes.
  virtual bool could_take(MemoryUse use, std::uint64_t bytes, std::uint64_t of_readers) noexcept = 0;
  /// Returns by how many bytes `use` exceeds what is guaranteed to it.
  virtual std::uint64_t beyond_guaranteed(MemoryUse use) noexcept = 0;
  virtual bool pressed(MemoryUse use) noexcept = 0;
  virtual void begin_wait() noexcept = 0;
  virtual void end_wait() noexcept = 0;

 protected:
  ~MemorySource() = default;
};

}  // namespace lmdbio::gather
