#include "lmdbio/io/exact_read.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "lmdbio/base/align.h"
#include "lmdbio/base/futex.h"

namespace lmdbio {

namespace {

Status bring(int fd, std::uint64_t offset, std::uint64_t bytes) noexcept {
  // The kernel asks storage for as much as the call asks for.  Nobody wants the bytes here, so that they may
  // all go to one place, which stays in the processor's cache.
  constexpr std::size_t kPlace = 4096, kMost = std::size_t{1} << 20;
  std::byte place[kPlace];
  iovec to[kMost / kPlace];
  const std::uint64_t end = align_up(offset + bytes, kPlace);
  for (std::uint64_t at = align_down(offset, kPlace); at < end;) {
    const auto pieces =
        static_cast<std::size_t>(std::min<std::uint64_t>((end - at) / kPlace, kMost / kPlace));
    for (std::size_t i = 0; i < pieces; ++i) to[i] = {place, kPlace};
    const ssize_t n = ::preadv(fd, to, static_cast<int>(pieces), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Status::from_errno(errno);
    if (n == 0) break;
    at += static_cast<std::uint64_t>(n);
  }
  return {};
}

}  // namespace

Status bring_exactly(const File& file, std::uint64_t offset, std::uint64_t bytes) noexcept {
  Status st;
  const bool open = file.with_fd([&](int fd) noexcept { st = bring(fd, offset, bytes); });
  return open ? st : Status::from_errno(EBADF);
}

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
