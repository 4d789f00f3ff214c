// What the I/O thread is given to read.
#pragma once

#include <memory>
#include <variant>

#include "lmdbio/cache/file_cache.h"

namespace lmdbio::cache {

/// A chunk into private memory, to be published over the window, or into the page cache.
struct ChunkJob {
  ChunkIndex chunk{};
  ChunkTable::Generation generation{};  ///< of the table when it began
  bool publishes = false;               ///< its memory is counted already, but for windows without a mapping
  std::uint64_t snapshot = 0;           ///< the newest known when it began
  unsigned load = 0;                    ///< of which WholeLoad: its `begun`; 0: a walk wants it
  bool awaited = false;                 ///< the walk cannot go on without it
};
/// A piece of the file, into the page cache.
struct ExtentJob {
  Extent extent;
};

struct ReadJob {
  std::shared_ptr<FileCache> file;
  std::variant<ChunkJob, ExtentJob> what;
  const ChunkJob* chunk() const noexcept { return std::get_if<ChunkJob>(&what); }
  const ExtentJob* extent() const noexcept { return std::get_if<ExtentJob>(&what); }
};

}  // namespace lmdbio::cache
