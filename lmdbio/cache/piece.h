// Memory for a large read that bypasses the page cache.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>

#include "lmdbio/base/align.h"
#include "lmdbio/base/bytes.h"
#include "lmdbio/base/status.h"
#include "lmdbio/io/open_file.h"

namespace lmdbio::cache {

/// A piece of a file.  One thread at a time.
class Piece {
 public:
  static constexpr std::size_t kBytes = std::size_t{1} << 20;

  Piece() noexcept : memory_(static_cast<std::byte*>(std::aligned_alloc(kAlignment, kBytes))) {}

  /// Reads `n` bytes, at most kBytes, from a multiple of 4 KiB on: directly, so that other data stays in the
  /// page cache, or else through the page cache.  Call it in a thread of the table that has the descriptors
  /// of the file.  Errors: ENODATA at the end of the file, ENOMEM, others as pread(2).
  Status read(const OpenFile& file, std::uint64_t offset, std::size_t n) noexcept {
    bytes_ = 0;
    if (memory_ == nullptr) return Status::from_errno(ENOMEM);
    if (const File* const direct = file.direct(); direct != nullptr && direct->alignment() <= kAlignment)
      bytes_ = std::min(n, static_cast<std::size_t>(
                               std::max(0L, read_once(direct->fd(), offset, 0, align_up(n, kAlignment)))));
    while (bytes_ < n) {
      const long got = read_once(file.buffered().fd(), offset, bytes_, n - bytes_);
      if (got < 0) return Status::from_errno(errno);
      if (got == 0) return Status::from_errno(ENODATA);
      bytes_ += static_cast<std::size_t>(got);
    }
    return {};
  }
  Bytes bytes() const noexcept { return {memory_.get(), bytes_}; }

 private:
  static constexpr std::size_t kAlignment = 4096;
  struct Free {
    void operator()(std::byte* p) const noexcept { std::free(p); }
  };
  long read_once(int fd, std::uint64_t offset, std::size_t from, std::size_t n) noexcept {
    ssize_t got;
    do got = ::pread(fd, memory_.get() + from, n, static_cast<off_t>(offset + from));
    while (got < 0 && errno == EINTR);
    return got;
  }

  const std::unique_ptr<std::byte, Free> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace lmdbio::cache
