#include "lmdbio/io/time_byte.h"

#include <unistd.h>

#include <cstddef>

#include "lmdbio/base/futex.h"

namespace lmdbio {

std::optional<std::int64_t> time_byte(const File& file, std::uint64_t offset) noexcept {
  ssize_t n = -1;
  std::int64_t ns = 0;
  (void)file.with_fd([&](int fd) noexcept {
    std::byte any;
    const std::int64_t begun = now_ns();
    n = ::pread(fd, &any, 1, static_cast<off_t>(offset));
    ns = now_ns() - begun;
  });
  return n == 1 ? std::optional(ns) : std::nullopt;
}

}  // namespace lmdbio
