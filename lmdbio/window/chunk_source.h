// Supplies the bytes of a file's chunks from the file, the page cache, or other processes of the node.  Walks
// need not know the difference.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "lmdbio/node/chunk_file.h"
#include "lmdbio/window/chunk_table.h"
#include "lmdbio/window/window.h"

namespace lmdbio::window {

struct WindowFile;

/// Supplies the bytes of one file's chunks.
class ChunkSource {
 public:
  enum class Answer : unsigned char {
    ready,  ///< the chunk is in the page cache, at least most of it: do not read it
    given,  ///< the memory that claim() returned has the bytes: publish it
    yours,  ///< the caller reads the chunk and calls filled() afterwards
    wait,   ///< another process is reading it, or memory is full now: call wait() when the chunk is needed
  };
  /// The place to which the caller would read a chunk.
  enum class Target : unsigned char {
    page_cache,
    memory,          ///< into memory that is published over the window; other processes may use it as well
    private_memory,  ///< into memory that is published over the window, for this process alone
  };
  struct Wanted {
    ChunkIndex chunk{};
    Target target{};
    std::uint64_t snapshot = 0;  ///< the newest snapshot that this process knows
    bool awaited = false;        ///< a walk cannot go on without it
  };
  enum class Waited : unsigned char {
    there,     ///< the chunk is in the page cache, unless it was dropped since
    given,     ///< claim() answers `given` now, unless the chunk file was removed since
    not_read,  ///< it was not read: claim it again
  };
  virtual ~ChunkSource() = default;
  /// Requests a chunk for a walk or for the load of the whole file.  Only the I/O thread calls it, with no
  /// lock held.  It blocks no longer than a system call that reads nothing from storage.  `memory` is empty
  /// before the call.  After `given` it holds the chunk.  After `yours` the caller reads the chunk into
  /// `memory`, or into memory of its own if `memory` is empty.
  virtual Answer claim(const Wanted& wanted, Staging& memory) noexcept = 0;
  struct Filled {
    bool good = false;  ///< false: the memory that claim() returned does not hold the bytes
    /// The name under which other processes find the bytes until drop().  The bytes are in the memory that
    /// claim() returned.
    std::optional<node::ChunkName> name{};
  };
  /// Ends a claim that was answered `yours`.  Must be called once.  `good`: all bytes were read.  Threads and
  /// locks as for claim().
  virtual Filled filled(ChunkIndex chunk, bool good) noexcept = 0;
  /// Tells the source that this process no longer keeps the chunk that filled() has named `name`.  Any
  /// thread, with any lock held.
  virtual void drop(const node::ChunkName& name) noexcept = 0;
  /// Tells the source that the file is being closed.  Until the next claim(), chunks that are passed to
  /// drop() may be left to other processes that will reach them.  Any thread, with any lock held.
  virtual void leave() noexcept = 0;
  /// Returns whether walks of other processes will reach the chunk soon, as of the last claim().  Any
  /// thread, with any lock held.
  virtual bool is_to_come(ChunkIndex chunk) const noexcept = 0;
  /// Returns how many processes have a row in the file's node table, including this one, as of the last
  /// claim().  Returns 0 until this process has claimed something.  Only the I/O thread calls it, with any
  /// lock held.
  virtual unsigned processes() const noexcept = 0;
  /// Returns whether the processes of the node may keep no more chunks.
  virtual bool is_full() const noexcept = 0;
  /// Called after the answer `wait`.  Waits until the other process has read the chunk or seems to have given
  /// up, for a few seconds at most.  Any thread, with no lock held and asynchronous signals blocked.  A
  /// signal handler may fork during the wait.
  virtual Waited wait(ChunkIndex chunk) noexcept = 0;
};

/// Makes the source for a file.  Its claim() answers `ready` if most of the chunk is in the page cache, and
/// `given` if another process of the node has the chunk in a chunk file.  It answers `wait` while another
/// process is reading the chunk.  Otherwise the caller reads the chunk.  The source must be destroyed before
/// `file`.  Returns nullptr if out of memory.
std::unique_ptr<ChunkSource> file_source(WindowFile& file) noexcept;

}  // namespace lmdbio::window
