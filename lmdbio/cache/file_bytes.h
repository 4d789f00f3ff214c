// Reads and writes all of some bytes of a file of the cache.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "lmdbio/base/bytes.h"

namespace lmdbio::cache {

/// Returns false if not all of the bytes were read; errno is 0 if the file has ended.
inline bool read_all(int fd, std::uint64_t offset, MutableBytes to) noexcept {
  errno = 0;
  while (!to.empty()) {
    const ssize_t n = ::pread(fd, to.data(), to.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to = to.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return true;
}

inline bool write_all(int fd, std::uint64_t offset, Bytes from) noexcept {
  while (!from.empty()) {
    const ssize_t n = ::pwrite(fd, from.data(), from.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    from = from.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return true;
}

}  // namespace lmdbio::cache
