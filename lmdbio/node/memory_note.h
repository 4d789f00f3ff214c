// Tells how much private memory the processes of one user have.  Each process writes a note, and adds up the
// notes of the other processes.
//
// A note is a segment of shared memory without a key, attached by the process that wrote it.  The kernel
// removes the note when that process ends for any reason, so no note outlives its process or needs a
// clean-up.  Notes are advice: processes of other users and other IPC namespaces do not see them.
#pragma once

#include <cstdint>

#include "lmdbio/node/segment.h"

namespace lmdbio::node {

/// Private memory of all other processes together, in bytes.
struct MemoryOfOthers {
  unsigned processes = 0;
  std::uint64_t used = 0;
  std::uint64_t promised = 0;  ///< what they may use before they check again, at least `used`
};

/// The note of this process.  It has no lock of its own: use it under the Prefetcher's lock, which the fork
/// handler takes.
class MemoryNote {
 public:
  /// Adds up the notes of the other processes with the same `group`.  The first call makes this process's
  /// note.  Takes some microseconds per process.  Returns false if nothing is known, because there is no
  /// shared memory or memory is short.
  bool look(std::uint64_t group, MemoryOfOthers& out) noexcept;
  /// Sets how much this process uses, and how much it may use before it checks again, in bytes.  Has no
  /// effect before look().
  void set(std::uint64_t used, std::uint64_t promised) noexcept;
  /// Forgets the note in a forked child, since it belongs to the parent.
  void forget() noexcept;

 private:
  Segment segment_;
  bool tried_ = false;
};

}  // namespace lmdbio::node
