// Owns a file descriptor.  No other code calls close(2).
#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace lmdbio {

/// A file descriptor.  A default-constructed or moved-from UniqueFd owns nothing: get() is -1.
class UniqueFd {
 public:
  UniqueFd() noexcept = default;
  /// Takes over `fd`.  A negative number means none.
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(other.release());
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  /// Leaves the descriptor to the caller, who closes it.
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
  /// Closes the descriptor and takes over `fd`, which must be another one.  errno preserved.
  void reset(int fd = -1) noexcept {
    const int old = std::exchange(fd_, fd);
    if (old < 0) return;
    const int saved = errno;
    ::close(old);  // files are only read, so no error matters; close(2) closes even on EINTR
    errno = saved;
  }

 private:
  int fd_ = -1;
};

}  // namespace lmdbio
