// Finds out which pages of a file's mapping this process has touched, from the present bits in
// /proc/self/pagemap.
//
// A touch also maps the other pages of the same 64 KiB block that are in the page cache (fault-around: 16
// pages of 4 KiB).  Reads into the page cache map none.  So a touched page proves the use of a value only if
// the value contains all bytes within 64 KiB of the page, on both sides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "lmdbio/io/private_table.h"

namespace lmdbio::window {

/// Reads the states of pages.  One thread at a time.  In a forked child all states are unknown.
class TouchedPages {
 public:
  /// A touched page proves the use of a value only if this many bytes on each side of the page belong to the
  /// value.
  static constexpr std::uint64_t kAround = std::uint64_t{64} << 10;

  enum class Page : unsigned char {
    absent,   ///< not touched, or unmapped by the kernel since
    touched,  ///< a page of a file
    unknown,  ///< private memory, or the state cannot be read
  };

  TouchedPages() noexcept = default;
  TouchedPages(TouchedPages&& other) noexcept;
  ~TouchedPages();
  /// Opens the page map, with a descriptor of the private table.  All states are unknown if the kernel does
  /// not report them, or reports wrong ones.
  static TouchedPages open() noexcept;
  explicit operator bool() const noexcept;
  /// Sets `pages` to the states of the pages that hold `addresses`.  A null address gives `unknown`.  The
  /// addresses themselves are not read.  Takes about 1 us per address, and two thread switches per call.
  void look(std::span<const std::byte* const> addresses, std::span<Page> pages) const noexcept;
  Page look(const std::byte* address) const noexcept;

 private:
  void open_here() noexcept;

  std::shared_ptr<PrivateTable> table_;
  int fd_ = -1;  ///< a descriptor in table_; -1: none
  unsigned page_shift_ = 12;
  unsigned generation_ = 0;  ///< PrivateTable::generation() at open()
};

}  // namespace lmdbio::window
