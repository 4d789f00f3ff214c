// Where the bytes of a file's chunks come from: the file, its page cache, or other processes of the node.
// Walks cannot tell one from another.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "lmdbio/cache/chunk_table.h"
#include "lmdbio/cache/window.h"
#include "lmdbio/node/chunk_file.h"

namespace lmdbio::cache {

struct FileCache;

/// A file's.
class ChunkSource {
 public:
  enum class Answer : unsigned char {
    ready,  ///< the file's mapping gives the chunk without a wait: nothing is to be read
    given,  ///< its bytes are in the memory that the caller was given, to be published
    yours,  ///< the caller is to read it, and to say so by filled()
    wait,  ///< another process is reading it, or there is no room for it yet: wait() for it when it is needed
  };
  /// Where the caller would read a chunk to.
  enum class Target : unsigned char {
    page_cache,
    memory,          ///< that is published over the window; other processes may use it as well
    private_memory,  ///< likewise, and they may not
  };
  struct Wanted {
    ChunkIndex chunk{};
    Target target{};
    std::uint64_t snapshot = 0;  ///< the newest that this process knows
    bool awaited = false;        ///< a walk cannot go on without it
  };
  enum class Waited : unsigned char {
    there,     ///< the file's mapping gives the chunk, unless it has gone again
    given,     ///< claim() gives it now, unless it has gone again
    not_read,  ///< it is to be claimed anew
  };
  virtual ~ChunkSource() = default;
  /// A walk, or the load of the whole file, wants a chunk.  By the I/O thread alone, with no lock held; does
  /// not block for longer than a system call that reads nothing from storage.  `memory`, empty before: after
  /// `given` the chunk's; after `yours` where the chunk is to be read to, or empty: to memory of the
  /// caller's.
  virtual Answer claim(const Wanted& wanted, Staging& memory) noexcept = 0;
  struct Filled {
    bool good = false;  ///< false: the memory that claim() gave does not hold the bytes
    /// Other processes find the bytes by it, in the memory that claim() gave, until drop().
    std::optional<node::ChunkName> name{};
  };
  /// After `yours`, once.  `good`: all bytes were read.  As claim().
  virtual Filled filled(ChunkIndex chunk, bool good) noexcept = 0;
  /// This process does not keep the chunk any more, which filled() gave that name.  Any thread, with any lock
  /// held.
  virtual void drop(const node::ChunkName& name) noexcept = 0;
  /// The file is being closed: chunks that drop() is told of until the next claim() may be left to the
  /// processes that come to them.  Any thread, with any lock held.
  virtual void leave() noexcept = 0;
  /// Walks of other processes are about to come to the chunk, as of the last claim().  Any thread, with any
  /// lock held.
  virtual bool is_to_come(ChunkIndex chunk) const noexcept = 0;
  /// How many processes have a row in the file's node table, this one included, as of the last claim(); 0:
  /// this process has claimed nothing yet.  By the I/O thread alone, with any lock held.
  virtual unsigned processes() const noexcept = 0;
  /// The processes of the node may not keep more chunks.
  virtual bool is_full() const noexcept = 0;
  /// After `wait`: until the other process has read the chunk, or does not seem to come to it any more; for a
  /// few seconds at most.  Any thread, with no lock held and asynchronous signals blocked; a handler may fork
  /// meanwhile.
  virtual Waited wait(ChunkIndex chunk) noexcept = 0;
};

/// The source for a file.  A chunk that is mostly in the page cache is ready.  A chunk that another process
/// of the node has in a chunk file is given.  A chunk that another process is reading is waited for.  The
/// caller reads all others.  Goes before `file`.  Null: out of memory.
std::unique_ptr<ChunkSource> file_source(FileCache& file) noexcept;

}  // namespace lmdbio::cache
