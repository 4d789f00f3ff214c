// The window: the bytes of a file at fixed addresses.  Page p is at base + p x page size.
//
// Normally the whole range is one mapping of the file, or the caller's bytes.  Pieces of it may be replaced
// by private memory with the same bytes (publish) and turned back into a mapping of the file (restore).
// Publish and restore are one system call each.  A thread that reads meanwhile, even inside a system call,
// sees the old or the new memory.  If the file cannot be mapped, the range starts as addresses without
// memory, and only publish adds pages (Window::reserve).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/mapping.h"
#include "lmdbio/base/result.h"
#include "lmdbio/format/layout.h"
#include "lmdbio/io/file.h"

namespace lmdbio::window {

/// Loads pages of a window that has no file behind it, for one transaction.
class PageLoader {
 public:
  /// Loads the pages `first` to `first` + `n` - 1, which must lie below the view's end.  They stay until the
  /// transaction ends.  Returns false if they cannot be read; the loader keeps the error.
  virtual bool load(std::uint64_t first, std::uint64_t n) noexcept = 0;

 protected:
  ~PageLoader() = default;
};

/// A transaction's part of a window: addresses and a bound.  Copied by value.
class WindowView {
 public:
  WindowView() = default;
  WindowView(const std::byte* base, unsigned shift, std::uint64_t pages, format::Version version) noexcept
      : base_(base), there_(pages), pages_(pages), shift_(shift), version_(version) {}

  /// Returns the bytes of `n` >= 1 pages from `p` on, or nullptr if not all of them are inside the view.
  const std::byte* at(format::Pgno p, std::uint64_t n = 1) const noexcept {
    const std::uint64_t first = format::raw(p);
    if (first >= there_ || n > there_ - first) [[unlikely]]
      return loader_ != nullptr ? loaded(first, n) : nullptr;
    return base_ + (first << shift_);
  }
  /// Sets `out` to the data of the overflow run that starts at page `p` and holds `bytes` bytes.  Returns
  /// false if the run is not completely inside the view.
  bool find(format::Pgno p, std::uint64_t bytes, const std::byte*& out) const noexcept {
    return version_ == format::Version::v09 ? find<format::Version::v09>(p, bytes, out)
                                            : find<format::Version::v10>(p, bytes, out);
  }
  /// Does the same in a file of version kVersion.
  template <format::Version kVersion>
  bool find(format::Pgno p, std::uint64_t bytes, const std::byte*& out) const noexcept {
    constexpr std::size_t kHeader = format::page_header(kVersion);
    const std::uint64_t first = format::raw(p);
    if (first >= there_ || (kHeader - 1 + bytes) >> shift_ >= there_ - first) [[unlikely]] {
      if (loader_ == nullptr) return false;
      const std::byte* const run = loaded(first, format::overflow_pages(kVersion, bytes, shift_));
      out = run + kHeader;
      return run != nullptr;
    }
    out = base_ + (first << shift_) + kHeader;
    return true;
  }
  /// Returns the address that page `p` would have.  For prefetch instructions only; never dereference it.
  const std::byte* hint(format::Pgno p) const noexcept {
    return base_ + ((format::raw(p) < pages_ ? format::raw(p) : 0) << shift_);
  }
  unsigned shift() const noexcept { return shift_; }
  format::Version version() const noexcept { return version_; }
  /// Returns the number of pages of an overflow run that holds `bytes`.
  std::uint64_t overflow_pages(std::uint64_t bytes) const noexcept {
    return format::overflow_pages(version_, bytes, shift_);
  }
  std::size_t page_size() const noexcept { return std::size_t{1} << shift_; }
  std::uint64_t pages() const noexcept { return pages_; }
  const std::byte* base() const noexcept { return base_; }
  /// Makes the view call `loader` before each access to a page, because the view then assumes no page to be
  /// in memory.
  void load_by(PageLoader* loader) noexcept {
    loader_ = loader;
    there_ = 0;
  }
  bool loads() const noexcept { return loader_ != nullptr; }

 private:
  [[gnu::cold]] const std::byte* loaded(std::uint64_t first, std::uint64_t n) const noexcept {
    if (first >= pages_ || n > pages_ - first || !loader_->load(first, n)) return nullptr;
    return base_ + (first << shift_);
  }

  const std::byte* base_ = nullptr;
  std::uint64_t there_ = 0;  ///< pages that need no loader
  std::uint64_t pages_ = 0;
  unsigned shift_ = 12;
  format::Version version_ = format::Version::v09;
  PageLoader* loader_ = nullptr;
};

/// Memory into which a piece of a file is read before the piece is published in a window.  This memory is
/// private and aligned to 2 MiB, and has huge pages where available.  Forked children do not inherit it, and
/// core dumps leave it out.
class Staging {
 public:
  Staging() noexcept = default;
  /// Makes staging of `bytes`, a multiple of 2 MiB.  ENOMEM.
  static Result<Staging> make(std::size_t bytes) noexcept;
  /// Takes over memory of a chunk file (node/chunk_file.h).  Unlike other staging, this memory is shared.
  static Staging adopt(Mapping shared) noexcept {
    Staging s;
    s.mapping_ = std::move(shared);
    s.is_shared_ = true;
    return s;
  }
  bool is_shared() const noexcept { return is_shared_; }
  std::byte* data() const noexcept { return mapping_.data(); }
  std::size_t size() const noexcept { return mapping_.size(); }
  explicit operator bool() const noexcept { return static_cast<bool>(mapping_); }
  /// Returns the memory for another use; the staging is empty afterwards.
  Mapping take() noexcept { return std::move(mapping_); }
  /// In a forked child: forgets the addresses, which are free there or used for something else.
  void forget() noexcept { (void)mapping_.release(); }

 private:
  friend class Window;
  Mapping mapping_;
  bool is_shared_ = false;
};

/// The system calls that publish and restore pieces of a window: mremap(2) and mmap(2).  Tests replace them
/// to make them fail.
struct WindowCalls {
  void* (*mremap)(void* from, std::size_t bytes, void* to) noexcept;
  /// Maps the same bytes of the file as the shared mapping `from`, at `to`.
  void* (*duplicate)(void* from, std::size_t bytes, void* to) noexcept;
  /// Turns the range into addresses without memory.
  void* (*reserve)(void* at, std::size_t bytes) noexcept;
};
/// The calls that all windows of the process use.  Tests replace them while no other thread uses a window.
WindowCalls& window_calls() noexcept;

/// Owns the range of addresses, which never changes.  The transactions that began with it, and environments
/// on the same file, share it.
class Window {
 public:
  /// The granularity of publish and restore, in bytes.
  static constexpr std::size_t kHugePage = lmdbio::kHugePage;

  /// Maps `length` bytes of `fd` for reading, aligned to 2 MiB; `length` may exceed the file.
  /// `no_readahead`: as MDB_NORDAHEAD.  `pages`: as the file has them.  `capacity`: see capacity().
  /// ENOMEM: no address space.
  static Result<Window> map(int fd, std::uint64_t length, format::PageFormat pages, bool no_readahead,
                            std::uint64_t capacity = 0) noexcept;
  /// Makes a window of addresses without memory.  A page may be read only after it was published.
  static Result<Window> reserve(std::uint64_t length, format::PageFormat pages) noexcept;
  /// Returns a window like map(), or the window that another environment of this process has made with the
  /// same arguments for the same file `id`.  `length` is the map size.  Address space is scarce under
  /// RLIMIT_AS, and when the windows of the process take terabytes.  Then the window is shorter: it covers
  /// the first `used` bytes, with room to grow.
  static Result<std::shared_ptr<Window>> shared(int fd, const FileIdentity& id, std::uint64_t length,
                                                format::PageFormat pages, bool no_readahead,
                                                std::uint64_t used) noexcept;
  /// Releases addresses that no view has used, in all shared windows.  Returns false if there are none.
  static bool shrink_all() noexcept;
  /// Makes a window over the caller's bytes, which must outlive it.  For tests and fuzzing.
  static Window over(Bytes bytes, format::PageFormat pages) noexcept;

  /// Returns a view of the first `pages` pages, cut to the window's length.
  WindowView view(std::uint64_t pages) const noexcept;
  /// Returns the length in bytes.  grow() and shrink_all() change it.
  std::uint64_t length() const noexcept { return __atomic_load_n(&length_, __ATOMIC_SEQ_CST); }
  /// Returns the largest value that length() may reach, in bytes.
  std::uint64_t capacity() const noexcept { return capacity_; }
  /// Makes the window at least `bytes` long, at the same addresses.  Returns false if that fails; the length
  /// has not changed then.  Any thread.
  bool grow(std::uint64_t bytes) noexcept;
  /// Makes sure that the first `bytes` of the window are never released.  Returns how many of these bytes the
  /// window has.  Any thread.
  std::uint64_t hold(std::uint64_t bytes) const noexcept;
  const std::byte* base() const noexcept { return base_; }
  /// Returns the record of the first meta page as the file has it now, even if chunks are published over it;
  /// that of the second one is behind it by the size of a page.  Returns nullptr if the window has no file.
  /// The address changes once, before anything is published.  So after reading the records, call metas()
  /// again and repeat the read if the address has changed.
  const std::byte* metas() const noexcept { return __atomic_load_n(&metas_, __ATOMIC_ACQUIRE); }
  unsigned page_shift() const noexcept { return shift_; }
  format::Version version() const noexcept { return version_; }
  /// Returns false if reserve() made the window.
  bool has_file() const noexcept { return has_file_; }

  /// Moves the first `bytes` of `staging` into the window at `offset`, a multiple of kHugePage, read-only.
  /// They must be the bytes that the file has there.  The rest of the staging is unmapped.  Returns false if
  /// there is no memory (vm.max_map_count), or prepare_restore() has not covered the piece.  Then neither the
  /// window nor the staging has changed.
  bool publish(std::uint64_t offset, std::size_t bytes, Staging& staging) noexcept;
  /// Prepares publish() and restore() for the first `bytes` of the file by a second mapping, which costs only
  /// addresses.  The two functions then need no descriptor, which the program may have closed.  Call it again
  /// for more bytes.  Returns false if there is no address space.  Windows without a file need no
  /// preparation.
  bool prepare_restore(std::uint64_t bytes) noexcept;
  /// Turns the piece back into a mapping of the window's file, or into addresses without memory if the window
  /// has no file.  Returns false on failure; nothing has changed then.
  bool restore(std::uint64_t offset, std::uint64_t bytes) noexcept;
  /// Makes the start of the window a mapping of another file with the same bytes.  `image` maps that file
  /// from its start; its size is a multiple of kHugePage.  prepare_restore() must have covered the start, and
  /// nothing may be published there.  restore() then gives pieces back to that file.  Returns false if there
  /// is no memory; nothing has changed then.
  bool map_image(Mapping image) noexcept;
  /// Ends map_image().  Returns false if there is no memory; nothing has changed then.  Pieces that are
  /// published there are given back as well.
  bool unmap_image() noexcept;
  /// Enables the kernel's read-ahead in spite of `no_readahead`, or disables it again.  Does nothing for a
  /// window without `no_readahead`.
  void use_readahead(bool on) noexcept;

 private:
  Window() = default;
  bool grow_locked(std::uint64_t bytes) noexcept;
  bool shrink_locked() noexcept;
  std::byte* at(std::uint64_t offset) const noexcept { return const_cast<std::byte*>(base_) + offset; }
  Mapping mapping_;   ///< its size changes under the lock of lock_shared_windows()
  Mapping twin_;      ///< made by prepare_restore(): maps the start of the file like mapping_
  Mapping original_;  ///< the twin of the file itself while `twin_` maps an image
  Mapping apart_;     ///< made by prepare_restore(): maps the meta pages
  const std::byte* base_ = nullptr;
  const std::byte* metas_ = nullptr;
  std::uint64_t length_ = 0, capacity_ = 0;
  mutable std::uint64_t held_ = 0;  ///< see hold()
  unsigned shift_ = 12;
  format::Version version_ = format::Version::v09;
  bool no_readahead_ = false, has_file_ = true;
  bool readahead_ = false;  ///< enabled now in spite of no_readahead_
};

/// Called around a fork.  The lock guards the list of shared windows.
void lock_shared_windows() noexcept;
void unlock_shared_windows() noexcept;

}  // namespace lmdbio::window
