// Where the bytes of a file's chunks come from: the seam below which other processes of a node, and other
// nodes, plug in.  Walks cannot tell one from another.
#pragma once

#include <memory>

#include "lmdbio/cache/chunk_table.h"

namespace lmdbio::cache {

struct FileCache;

/// A file's.  Called by the I/O thread alone, with no lock held; must not block for longer than a system call
/// that reads nothing from storage.
class ChunkSource {
 public:
  enum class Answer : unsigned char {
    ready,  ///< the file's mapping gives the chunk without a wait: nothing is to be read
    yours,  ///< the caller is to read it, and to say so by filled()
    wait,   ///< somebody else is reading it: ask again
  };
  virtual ~ChunkSource() = default;
  /// A walk, or the load of the whole file, wants `chunk`.
  virtual Answer claim(ChunkIndex chunk) noexcept = 0;
  /// After `yours`, once.  `good`: all bytes were read.
  virtual void filled(ChunkIndex chunk, bool good) noexcept = 0;
};

/// The file itself: chunks that are mostly in the page cache are ready, all others are the caller's to read.
/// Goes before `file`.  Null: out of memory.
std::unique_ptr<ChunkSource> file_source(const FileCache& file) noexcept;

}  // namespace lmdbio::cache
