// The owner of a file descriptor, and the only caller of close(2).
#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace lmdbio {

/// Moved-from and default-made: owns nothing, get() is -1.
class UniqueFd {
 public:
  UniqueFd() noexcept = default;
  /// Takes `fd` over; negative: nothing.
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
  /// The caller closes it from now on.
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
  /// Closes what it owns and takes `fd` over; errno preserved.  Not for the descriptor that it owns already.
  void reset(int fd = -1) noexcept {
    const int old = std::exchange(fd_, fd);
    if (old < 0) return;
    const int saved = errno;
    ::close(old);  // only read from: nothing to lose; and after EINTR Linux has closed it
    errno = saved;
  }

 private:
  int fd_ = -1;
};

}  // namespace lmdbio
