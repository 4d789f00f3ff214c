// The window: a file's bytes at fixed addresses, page p at base + p x page size.
//
// Today the whole range is one mapping of the file, or the caller's bytes.  It is the only way by which
// cursors and searches reach bytes, so that later backings change nothing above it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/mapping.h"
#include "lmdbio/base/result.h"
#include "lmdbio/format/layout.h"

namespace lmdbio::cache {

/// What a transaction needs of a window, by value: addresses and its own bound.
class WindowView {
 public:
  WindowView() = default;
  WindowView(const std::byte* base, unsigned shift, std::uint64_t pages) noexcept
      : base_(base), pages_(pages), shift_(shift) {}

  /// The bytes of `n` >= 1 pages from `p` on, or null if they are not all inside the view.
  const std::byte* at(format::Pgno p, std::uint64_t n = 1) const noexcept {
    const std::uint64_t first = format::raw(p);
    if (first >= pages_ || n > pages_ - first) [[unlikely]]
      return nullptr;
    return base_ + (first << shift_);
  }
  /// The `bytes` of an overflow run that starts at page `p`.  False: not all inside the view.
  bool find(format::Pgno p, std::uint64_t bytes, const std::byte*& out) const noexcept {
    const std::uint64_t first = format::raw(p);
    if (first >= pages_ || (format::kPageHeader - 1 + bytes) >> shift_ >= pages_ - first) [[unlikely]]
      return false;
    out = base_ + (first << shift_) + format::kPageHeader;
    return true;
  }
  /// Where page `p` would be: for prefetch instructions only, never to be dereferenced.
  const std::byte* hint(format::Pgno p) const noexcept {
    return base_ + ((format::raw(p) < pages_ ? format::raw(p) : 0) << shift_);
  }
  unsigned shift() const noexcept { return shift_; }
  std::size_t page_size() const noexcept { return std::size_t{1} << shift_; }
  std::uint64_t pages() const noexcept { return pages_; }
  const std::byte* base() const noexcept { return base_; }

 private:
  const std::byte* base_ = nullptr;
  std::uint64_t pages_ = 0;
  unsigned shift_ = 12;
};

/// Owns the range.  Immutable after it is made; shared by all transactions that began with it.
class Window {
 public:
  /// Maps `length` bytes (the map size; may exceed the file) of `fd` for reading, aligned to 2 MiB.
  /// `no_readahead`: as MDB_NORDAHEAD.  `page_size` is a power of two.  ENOMEM: no address space.
  static Result<Window> map(int fd, std::uint64_t length, std::size_t page_size, bool no_readahead) noexcept;
  /// Over the caller's bytes, which outlive the window (tests, fuzzing).
  static Window over(Bytes bytes, std::size_t page_size) noexcept;

  /// A view of the first `pages` pages (cut to the window's length).
  WindowView view(std::uint64_t pages) const noexcept;
  std::uint64_t length() const noexcept { return length_; }

 private:
  Window() = default;
  Mapping mapping_;
  const std::byte* base_ = nullptr;
  std::uint64_t length_ = 0;
  unsigned shift_ = 12;
};

}  // namespace lmdbio::cache
