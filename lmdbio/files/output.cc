#include "lmdbio/files/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace lmdbio::files {

namespace {

/// Size of the buffer, of a write, and of a pipe if the system allows it, in bytes.
constexpr std::size_t kBuffer = std::size_t{1} << 20;
/// Fewer bytes are copied, because a part of a write costs as much.
constexpr std::size_t kLeastPart = 1024;

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
  while (!bytes.empty()) {
    char* const to = buffer_.get() + used_;  // has room: a full buffer is written by add()
    const std::size_t n = bytes.copy(to, kBuffer - used_);
    used_ += n;
    if (const int e = add(to, n); e != 0) return e;
    bytes.remove_prefix(n);
  }
  return 0;
}

int Output::append_lasting(std::string_view bytes) noexcept {
  return bytes.size() < kLeastPart ? append(bytes) : add(bytes.data(), bytes.size());
}

int Output::append_zeros(std::size_t n) noexcept {
  static constexpr char kZeros[512] = {};
  for (; n > sizeof kZeros; n -= sizeof kZeros)
    if (const int e = append({kZeros, sizeof kZeros}); e != 0) return e;
  return append({kZeros, n});
}

/// Adds bytes to the parts, and writes these if they are many.
int Output::add(const char* bytes, std::size_t n) noexcept {
  iovec* const last = count_ == 0 ? nullptr : &parts_[count_ - 1];
  if (last != nullptr && static_cast<const char*>(last->iov_base) + last->iov_len == bytes)
    last->iov_len += n;
  else
    parts_[count_++] = {const_cast<char*>(bytes), n};
  waiting_ += n;
  return waiting_ >= kBuffer || count_ == kMostParts ? flush() : 0;
}

int Output::flush() noexcept {
  iovec* part = parts_.data();
  iovec* const end = part + std::exchange(count_, 0);
  used_ = waiting_ = 0;
  while (part != end) {
    const ssize_t n = ::writev(fd_, part, static_cast<int>(end - part));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    auto written = static_cast<std::size_t>(n);
    for (; part != end && written >= part->iov_len; ++part) written -= part->iov_len;
    if (written == 0) continue;
    part->iov_base = static_cast<char*>(part->iov_base) + written;
    part->iov_len -= written;
  }
  return 0;
}

}  // namespace lmdbio::files
