#include "lmdbio/files/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace lmdbio::files {

namespace {

/// Size of the buffer, and of a pipe if the system allows it, in bytes.
constexpr std::size_t kBuffer = std::size_t{1} << 20;
/// A piece of this size or more is written without copying it to the buffer.
constexpr std::size_t kWrittenAtOnce = std::size_t{128} << 10;

}  // namespace

int write_all(int fd, std::string_view bytes) noexcept {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return 0;
}

Output::Output(int fd) : fd_(fd), buffer_(std::make_unique_for_overwrite<char[]>(kBuffer)) {
  (void)::fcntl(fd, F_SETPIPE_SZ, static_cast<int>(kBuffer));
}

int Output::append(std::string_view bytes) noexcept {
  if (bytes.size() > kBuffer - used_ || bytes.size() >= kWrittenAtOnce) {
    if (const int e = flush(); e != 0) return e;
    if (bytes.size() >= kWrittenAtOnce) return write_all(fd_, bytes);
  }
  used_ += bytes.copy(buffer_.get() + used_, bytes.size());
  return 0;
}

int Output::append_zeros(std::size_t n) noexcept {
  static constexpr char kZeros[512] = {};
  for (; n > sizeof kZeros; n -= sizeof kZeros)
    if (const int e = append({kZeros, sizeof kZeros}); e != 0) return e;
  return append({kZeros, n});
}

int Output::flush() noexcept {
  const std::string_view have(buffer_.get(), used_);
  used_ = 0;
  return write_all(fd_, have);
}

}  // namespace lmdbio::files
