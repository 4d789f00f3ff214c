// Writes to a file descriptor through a buffer.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string_view>

namespace lmdbio::files {

/// A buffered writer.  One thread.  Functions return 0, or an errno as write_all() does; after an error, the
/// output is not usable.
class Output {
 public:
  /// `fd`: belongs to the caller, who keeps it open.  May throw bad_alloc.
  explicit Output(int fd);
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  [[nodiscard]] int append(std::string_view bytes) noexcept;
  [[nodiscard]] int append_zeros(std::size_t n) noexcept;
  /// As append(), but without a copy, unless they are few: `bytes` must stay as they are until the next
  /// flush().
  [[nodiscard]] int append_lasting(std::string_view bytes) noexcept;
  /// Writes all that was appended.
  [[nodiscard]] int flush() noexcept;

 private:
  static constexpr std::size_t kMostParts = 1024;  // what the system takes at a time
  int add(const char* bytes, std::size_t n) noexcept;

  const int fd_;
  const std::unique_ptr<char[]> buffer_;
  std::size_t used_ = 0;  ///< of the buffer
  std::array<iovec, kMostParts> parts_;
  std::size_t count_ = 0;    ///< of parts_
  std::size_t waiting_ = 0;  ///< bytes in them
};

/// Writes all of `bytes`, and continues after interruptions.  Returns 0, or an errno; EFAULT if bytes of a
/// mapped file cannot be read.
[[nodiscard]] int write_all(int fd, std::string_view bytes) noexcept;

}  // namespace lmdbio::files
