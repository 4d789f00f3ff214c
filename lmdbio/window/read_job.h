// The jobs of the I/O thread.
#pragma once

#include <memory>
#include <variant>

#include "lmdbio/window/window_file.h"

namespace lmdbio::window {

/// Reads a chunk, either into the page cache, or into private memory that is then published over the window.
struct ChunkJob {
  ChunkIndex chunk{};
  ChunkTable::Generation generation{};  ///< of the chunk table when the job was made
  bool publishes = false;      ///< into memory that is counted already, unless the window has no mapping
  std::uint64_t snapshot = 0;  ///< the newest snapshot known when the job was made
  unsigned load = 0;           ///< WholeLoad::begun of the load that reads it; 0: for a walk
  bool awaited = false;        ///< the walk cannot go on without it
};
/// Reads a piece of the file into the page cache.
struct ExtentJob {
  Extent extent;
};

struct ReadJob {
  std::shared_ptr<WindowFile> file;
  std::variant<ChunkJob, ExtentJob> what;
  const ChunkJob* chunk() const noexcept { return std::get_if<ChunkJob>(&what); }
  const ExtentJob* extent() const noexcept { return std::get_if<ExtentJob>(&what); }
};

}  // namespace lmdbio::window
