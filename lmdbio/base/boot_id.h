// Tells whether the machine was started again.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <string_view>

#include "lmdbio/base/unique_fd.h"

namespace lmdbio {

/// The text that the kernel chooses at each start of the machine.
class BootId {
 public:
  BootId() noexcept {
    const UniqueFd fd(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
    const ssize_t n = fd ? ::read(fd.get(), text_, sizeof text_) : 0;
    size_ = n > 0 ? static_cast<std::size_t>(n) : 0;
  }
  /// Returns the text, with a newline at its end.  Empty: it cannot be read.
  std::string_view text() const noexcept { return {text_, size_}; }

 private:
  char text_[64];
  std::size_t size_;
};

}  // namespace lmdbio
