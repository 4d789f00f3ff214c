// How much private memory the processes of one user have: each keeps a note, and adds up those of the others.
//
// A note is a segment of shared memory without a key, attached by the process that wrote it.  The kernel
// removes it when that process ends, however it ends: no note outlives its process, and none has to be
// cleaned up.  Notes are advice: processes of other users and other IPC namespaces are not seen.
#pragma once

#include <cstdint>

#include "lmdbio/node/segment.h"

namespace lmdbio::node {

/// Bytes, of all other processes together.
struct MemoryOfOthers {
  unsigned processes = 0;
  std::uint64_t used = 0;
  std::uint64_t promised = 0;  ///< used, or what they may take before they look again, if that is more
};

/// This process's.  No lock of its own: the Prefetcher's, which the fork handler takes as well.
class MemoryNote {
 public:
  /// Adds up the notes of the other processes with the same `group`.  Makes this process's note at the first
  /// call.  Some microseconds per process.  False: there is no shared memory, and nothing is known.
  bool look(std::uint64_t group, MemoryOfOthers& out) noexcept;
  /// What this process uses and may take before it looks again.  Nothing before the first look().
  void set(std::uint64_t used, std::uint64_t promised) noexcept;
  /// In a forked child: the note is the parent's.
  void forget() noexcept;

 private:
  Segment segment_;
  bool tried_ = false;
};

}  // namespace lmdbio::node
