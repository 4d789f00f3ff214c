// Waits for memory that other readers, streams or chunks will release.
#pragma once

#include <cstdint>
#include <optional>

#include "lmdbio/records/memory.h"
#include "lmdbio/records/stream.h"

namespace lmdbio::records {

/// Waits between two attempts to take memory that a caller needs.  Drops read-ahead of streams, and waits for
/// memory that cannot be dropped yet.  Call begin(), then try to take the memory.  If that fails, call
/// make_way() if memory can be dropped, or changed() if not.  Then start again.  The caller must not hold a
/// lock of a reader.
class MemoryWait {
 public:
  MemoryWait(Memory& memory, const Stream::Caller& caller) noexcept : memory_(memory), caller_(caller) {}
  MemoryWait(const MemoryWait&) = delete;
  MemoryWait& operator=(const MemoryWait&) = delete;
  ~MemoryWait() = default;

  /// Call it before each attempt.
  void begin() noexcept { seen_ = memory_.changes().now(); }
  /// Returns the urgency of the next attempt.
  Urgency urgency() const noexcept { return urgency_; }
  /// Drops read-ahead, or waits for memory.  Call it after an attempt that would succeed without the
  /// read-ahead of reader `of`.  If `of` is null, the attempt would succeed without chunks and without the
  /// read-ahead of all readers.  Returns OK if the caller should try again.  ECANCELED: the wait was
  /// cancelled.  ENOMEM: nothing has changed for a minute.
  Status make_way(const Shared* of) noexcept;
  /// Call it after a failed attempt if no memory can be dropped.  Returns true if the caller should try
  /// again, because other callers took or gave back memory during the attempt.
  bool changed() noexcept;

 private:
  Memory& memory_;
  const Stream::Caller caller_;
  std::optional<Memory::Need> need_;
  std::uint32_t seen_ = 0;
  Urgency urgency_ = Urgency::needed;
  std::int64_t idle_ns_ = 0;  ///< time without a change
  unsigned changes_ = 0;      ///< number of changes that changed() has found
};

}  // namespace lmdbio::records
