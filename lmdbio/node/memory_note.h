// How much private memory the processes of one user have.  Each process keeps a note, and adds up those of
// the others.
//
// A note is a segment of shared memory without a key, attached by the process that wrote it.  The kernel
// removes it when that process ends for any reason, so no note outlives its process or needs a clean-up.
// Notes are advice: processes of other users and other IPC namespaces do not see them.
#pragma once

#include <cstdint>

#include "lmdbio/node/segment.h"

namespace lmdbio::node {

/// Private memory of all other processes together, in bytes.
struct MemoryOfOthers {
  unsigned processes = 0;
  std::uint64_t used = 0;
  std::uint64_t promised = 0;  ///< `used`, or what they may take before they look again, if that is more
};

/// The note of this process.  It has no lock of its own: use it under the Prefetcher's, which the fork
/// handler takes.
class MemoryNote {
 public:
  /// Adds up the notes of the other processes with the same `group`.  The first call makes this process's
  /// note.  Takes some microseconds per process.  False: nothing is known, since there is no shared memory
  /// or memory is short.
  bool look(std::uint64_t group, MemoryOfOthers& out) noexcept;
  /// Sets what this process uses, and what it may take before it looks again, in bytes.  No effect before
  /// look().
  void set(std::uint64_t used, std::uint64_t promised) noexcept;
  /// For a forked child: the note belongs to the parent.
  void forget() noexcept;

 private:
  Segment segment_;
  bool tried_ = false;
};

}  // namespace lmdbio::node
