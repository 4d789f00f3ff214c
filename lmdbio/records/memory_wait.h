// Waits for memory that other readers, streams or chunks will release.
#pragma once

#include <cstdint>
#include <optional>

#include "lmdbio/records/memory.h"
#include "lmdbio/records/stream.h"

namespace lmdbio::records {

/// Waits between two attempts to take memory that a caller cannot do without.  It drops read-ahead of
/// streams, and waits for memory that cannot be dropped yet.  Call begin(), then try to take the memory.
/// If that fails, call make_way() if memory can be dropped, or else changed(), and start again.  The caller
/// holds no lock of a reader.
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
  /// Call it after an attempt that would succeed without the read-ahead of reader `of`; with null, without
  /// the read-ahead of all readers and without chunks.  OK: try again.  ECANCELED: the wait was cancelled.
  /// ENOMEM: nothing has changed for a minute.
  Status make_way(const Shared* of) noexcept;
  /// Call it after an attempt for which no memory could be dropped.  Returns true if other callers took or
  /// gave back memory during the attempt: try again.
  bool changed() noexcept;

 private:
  Memory& memory_;
  const Stream::Caller caller_;
  std::optional<Memory::Need> need_;
  std::uint32_t seen_ = 0;
  Urgency urgency_ = Urgency::needed;
  std::int64_t idle_ns_ = 0;  ///< time without a change
  unsigned changes_ = 0;      ///< number of times that changed() saw a change
};

}  // namespace lmdbio::records
