// Reads a database file through its image in the cache on local disk.
#pragma once

#include <memory>

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
    if (bytes_ != Bytes::unwanted && image_->read(offset, to)) return static_cast<long>(to.size());
    const long n = file_->fill(offset, to);
    if (n <= 0) return n;
    image_->note_read(static_cast<std::uint64_t>(n));
    if (bytes_ == Bytes::direct) {
      image_->offer(offset, to.first(static_cast<std::size_t>(n)));
    } else {
      // Only whole units count, and the page cache has the rest of the first and of the last one.
      const std::uint64_t first = align_down(offset, kUnitBytes);
      image_->offer_cached(first, align_up(offset + static_cast<std::uint64_t>(n), kUnitBytes) - first);
    }
    return n;
  }
  unsigned threads() const noexcept override { return file_->threads(); }

 private:
  const std::shared_ptr<Image> image_;
  const std::unique_ptr<RangeReader> file_;
  const Bytes bytes_;
};

}  // namespace lmdbio::cache
