// Which pages of a file's mapping this process has touched: the present bit of /proc/self/pagemap.
//
// A touch makes the 16 pages of its 64 KiB present that are in the page cache (fault-around); reads into the
// page cache make none.  So a page tells of a value if all bytes within 64 KiB of it are the value's.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "lmdbio/base/unique_fd.h"

namespace lmdbio::cache {

/// One thread at a time.  In a forked child it knows nothing.
class TouchedPages {
 public:
  /// Bytes on each side of a page that have to belong to what it tells of.
  static constexpr std::uint64_t kAround = std::uint64_t{64} << 10;

  enum class Page : unsigned char {
    absent,   ///< not touched, or forgotten by the kernel
    touched,  ///< a page of a file
    unknown,  ///< private memory, or nothing tells
  };

  TouchedPages() noexcept = default;
  /// Takes a descriptor.  Knows nothing where the kernel does not tell, or tells what is not true.
  static TouchedPages open() noexcept;
  explicit operator bool() const noexcept;
  /// Reads nothing from `address` itself.  About 1 us.
  Page look(const std::byte* address) const noexcept;

 private:
  UniqueFd fd_;
  pid_t process_ = 0;
  unsigned page_shift_ = 12;
};

}  // namespace lmdbio::cache
