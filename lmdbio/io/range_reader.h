// How the threads of an engine read, if they do not call pread(2) for one descriptor.
#pragma once

#include <cstdint>
#include <span>

#include "lmdbio/base/bytes.h"

namespace lmdbio {

/// Reads ranges of a file for a ThreadsEngine.  Any thread.
class RangeReader {
 public:
  virtual ~RangeReader() = default;
  /// Reads the bytes from `offset` on.  Returns the number of bytes, as pread(2), or a negative errno.
  /// Blocks.
  virtual long fill(std::uint64_t offset, MutableBytes to) noexcept = 0;
  struct Range {
    std::uint64_t offset;
    MutableBytes to;
    long result = 0;  ///< as that of fill()
  };
  /// Reads several ranges.  Blocks until all have been read.
  virtual void fill_all(std::span<Range> ranges) noexcept {
    for (Range& r : ranges) r.result = fill(r.offset, r.to);
  }
  /// Returns how many small ranges one call of fill_all() reads at the same time, at most kMostAtOnce.
  virtual unsigned at_once() const noexcept { return 1; }
  static constexpr unsigned kMostAtOnce = 16;
  /// Returns how many threads should read at once.
  virtual unsigned threads() const noexcept = 0;
};

}  // namespace lmdbio
