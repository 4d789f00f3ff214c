// How the threads of an engine read, if they do not call pread(2) for one descriptor.
#pragma once

#include <cstdint>

#include "lmdbio/base/bytes.h"

namespace lmdbio {

/// Reads ranges of a file for a ThreadsEngine.  Any thread.
class RangeReader {
 public:
  virtual ~RangeReader() = default;
  /// Reads the bytes from `offset` on.  Returns the number of bytes, as pread(2), or a negative errno.
  /// Blocks.
  virtual long fill(std::uint64_t offset, MutableBytes to) noexcept = 0;
  /// Returns how many threads should read at once.
  virtual unsigned threads() const noexcept = 0;
};

}  // namespace lmdbio
