// Reads a database file through its image in the cache on local disk.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>

#include "lmdbio/base/align.h"
#include "lmdbio/cache/image.h"
#include "lmdbio/io/range_reader.h"

namespace lmdbio::cache {

/// Reads from the image what it has, everything else with another reader, and offers the image what that one
/// has read.
class CachedReader final : public RangeReader {
 public:
  enum class Bytes : unsigned char {
    direct,    ///< the caller uses the bytes, which are read past the page cache
    buffered,  ///< the caller uses the bytes, which are read through the page cache
    unwanted,  ///< the caller wants the bytes in the page cache of the database file; never read from the
               ///< image
  };
  CachedReader(std::shared_ptr<Image> image, std::unique_ptr<RangeReader> file, Bytes bytes) noexcept
      : image_(std::move(image)), file_(std::move(file)), bytes_(bytes) {}

  long fill(std::uint64_t offset, MutableBytes to) noexcept override {
    Range range{offset, to};
    fill_all({&range, 1});
    return range.result;
  }
  void fill_all(std::span<Range> ranges) noexcept override {
    const auto read = [this](Range& r) noexcept {
      const bool good = bytes_ != Bytes::unwanted && image_->read(r.offset, r.to);
      if (good) r.result = static_cast<long>(r.to.size());
      return good;
    };
    // The reader of the file reads those together that the image lacks.
    while (!ranges.empty()) {
      std::size_t n = 0;
      while (n < ranges.size() && !read(ranges[n])) ++n;
      if (n != 0) file_->fill_all(ranges.first(n));
      for (const Range& r : ranges.first(n)) offer(r);
      ranges = ranges.subspan(std::min(n + 1, ranges.size()));
    }
  }
  unsigned at_once() const noexcept override { return file_->at_once(); }
  unsigned threads() const noexcept override { return file_->threads(); }

 private:
  void offer(const Range& r) noexcept {
    if (r.result <= 0) return;
    const auto n = static_cast<std::size_t>(r.result);
    image_->note_read(n);
    if (bytes_ == Bytes::direct) {
      image_->offer(r.offset, r.to.first(n));
    } else {
      // Only whole units count, and the page cache has the rest of the first and of the last one.
      const std::uint64_t first = align_down(r.offset, kUnitBytes);
      image_->offer_cached(first, align_up(r.offset + n, kUnitBytes) - first);
    }
  }

  const std::shared_ptr<Image> image_;
  const std::unique_ptr<RangeReader> file_;
  const Bytes bytes_;
};

}  // namespace lmdbio::cache
