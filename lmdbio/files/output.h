// Writes to a file descriptor through a buffer.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace lmdbio::files {

/// A buffered writer.  One thread.  Functions return 0, or the errno of write(2); after an error, the output
/// is not usable.
class Output {
 public:
  /// `fd`: belongs to the caller, who keeps it open.  May throw bad_alloc.
  explicit Output(int fd);
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  [[nodiscard]] int append(std::string_view bytes) noexcept;
  [[nodiscard]] int append_zeros(std::size_t n) noexcept;
  /// Writes what the buffer has.
  [[nodiscard]] int flush() noexcept;

 private:
  const int fd_;
  const std::unique_ptr<char[]> buffer_;
  std::size_t used_ = 0;
};

/// Writes all of `bytes`, and continues after interruptions.  Returns 0 or an errno.
[[nodiscard]] int write_all(int fd, std::string_view bytes) noexcept;

}  // namespace lmdbio::files
