// Which pages of a file's mapping this process has touched: the present bit of /proc/self/pagemap.
//
// A touch makes the 16 pages of its 64 KiB present that are in the page cache (fault-around); reads into the
// page cache make none.  So a page tells of a value if all bytes within 64 KiB of it are the value's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lmdbio/io/private_table.h"

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
  TouchedPages(TouchedPages&& other) noexcept;
  ~TouchedPages();
  /// Takes a descriptor of the private table.  Knows nothing where the kernel does not tell, or tells what is
  /// not true.
  static TouchedPages open() noexcept;
  explicit operator bool() const noexcept;
  /// Looks at the pages that hold `addresses`; null: unknown.  Reads nothing from the addresses themselves.
  /// About 1 us each, and two changes of threads for all.
  void look(std::span<const std::byte* const> addresses, std::span<Page> pages) const noexcept;
  Page look(const std::byte* address) const noexcept;

 private:
  void open_here() noexcept;

  std::shared_ptr<PrivateTable> table_;
  int fd_ = -1;  ///< in table_
  unsigned page_shift_ = 12;
  unsigned generation_ = 0;  ///< of forks
};

}  // namespace lmdbio::cache
