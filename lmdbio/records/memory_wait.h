// Waiting for memory that others will give.
#pragma once

#include <cstdint>
#include <optional>

#include "lmdbio/records/memory.h"
#include "lmdbio/records/stream.h"

namespace lmdbio::records {

/// What one who cannot do without memory does between two attempts to take it: makes read-ahead of streams
/// give way, and waits for what cannot give way yet.  begin(), an attempt, then make_way() if something is in
/// the way, else changed(); and so on.  The caller holds no lock of a reader.
class MemoryWait {
 public:
  MemoryWait(Memory& memory, const Stream::Caller& caller) noexcept : memory_(memory), caller_(caller) {}
  MemoryWait(const MemoryWait&) = delete;
  MemoryWait& operator=(const MemoryWait&) = delete;
  ~MemoryWait() = default;

  /// Before each attempt.
  void begin() noexcept { seen_ = memory_.changes().now(); }
  /// Of the next attempt.
  Urgency urgency() const noexcept { return urgency_; }
  /// An attempt failed, and read-ahead of reader `of` is in the way; null: that of any reader, or chunks. OK:
  /// the next attempt is due.  ECANCELED.  ENOMEM: for a long time nothing has changed.
  Status make_way(const Shared* of) noexcept;
  /// An attempt failed, and nothing that could give way was in the way.  True: that was found while others
  /// took memory, or gave some back; the next attempt is due.
  bool changed() noexcept;

 private:
  Memory& memory_;
  const Stream::Caller caller_;
  std::optional<Memory::Need> need_;
  std::uint32_t seen_ = 0;
  Urgency urgency_ = Urgency::needed;
  std::int64_t idle_ns_ = 0;  ///< without a change
  unsigned changes_ = 0;      ///< that changed() told of
};

}  // namespace lmdbio::records
