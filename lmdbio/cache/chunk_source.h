// Where the bytes of a file's chunks come from: the seam below which other processes of a node, and other
// nodes, plug in.  Walks cannot tell one from another.
#pragma once

#include <memory>

#include "lmdbio/cache/chunk_table.h"

namespace lmdbio::cache {

struct FileCache;

/// A file's.
class ChunkSource {
 public:
  enum class Answer : unsigned char {
    ready,  ///< the file's mapping gives the chunk without a wait: nothing is to be read
    yours,  ///< the caller is to read it, and to say so by filled()
    wait,   ///< another process is reading it: wait() for it when it is needed
  };
  /// Where the caller would read a chunk to.
  enum class Target : bool { page_cache, private_memory };
  enum class Waited : unsigned char {
    there,    ///< the file's mapping gives the chunk, unless it has gone again
    not_read  ///< it is to be claimed anew
  };
  virtual ~ChunkSource() = default;
  /// A walk, or the load of the whole file, wants `chunk`.  By the I/O thread alone, with no lock held; does
  /// not block for longer than a system call that reads nothing from storage.
  virtual Answer claim(ChunkIndex chunk, Target target) noexcept = 0;
  /// After `yours`, once.  `good`: all bytes were read.  As claim().
  virtual void filled(ChunkIndex chunk, bool good) noexcept = 0;
  /// After `wait`: until the other process has read the chunk, or does not seem to come to it any more; for a
  /// few seconds at most.  Any thread, with no lock held and asynchronous signals blocked; a handler may fork
  /// meanwhile.
  virtual Waited wait(ChunkIndex chunk) noexcept = 0;
};

/// The file itself: chunks that are mostly in the page cache are ready, one that another process of the node
/// is bringing there is waited for, all others are the caller's to read.  Goes before `file`.  Null: out of
/// memory.
std::unique_ptr<ChunkSource> file_source(FileCache& file) noexcept;

}  // namespace lmdbio::cache
