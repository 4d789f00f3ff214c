// The window: a file's bytes at fixed addresses, page p at base + p x page size.
//
// At rest the whole range is one mapping of the file, or the caller's bytes.  Pieces of it may be replaced by
// private memory with the same bytes (publish) and given back to the file (restore): both are one system
// call, and whoever reads meanwhile, also inside one, sees either.  Where a file cannot be mapped the range
// starts out as addresses without memory, and pages appear by publish alone (Window::reserve).
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

namespace lmdbio::cache {

/// Brings pages of a window that has no file behind it; the transaction's.
class PageLoader {
 public:
  /// Pages `first` to `first` + `n` - 1, all below the view's end, are there afterwards, for as long as the
  /// transaction runs.  False: they cannot be read; the loader knows why.
  virtual bool load(std::uint64_t first, std::uint64_t n) noexcept = 0;

 protected:
  ~PageLoader() = default;
};

/// What a transaction needs of a window, by value: addresses and its own bound.
class WindowView {
 public:
  WindowView() = default;
  WindowView(const std::byte* base, unsigned shift, std::uint64_t pages) noexcept
      : base_(base), there_(pages), pages_(pages), shift_(shift) {}

  /// The bytes of `n` >= 1 pages from `p` on, or null if they are not all inside the view.
  const std::byte* at(format::Pgno p, std::uint64_t n = 1) const noexcept {
    const std::uint64_t first = format::raw(p);
    if (first >= there_ || n > there_ - first) [[unlikely]]
      return loader_ != nullptr ? loaded(first, n) : nullptr;
    return base_ + (first << shift_);
  }
  /// The `bytes` of an overflow run that starts at page `p`.  False: not all inside the view.
  bool find(format::Pgno p, std::uint64_t bytes, const std::byte*& out) const noexcept {
    const std::uint64_t first = format::raw(p);
    if (first >= there_ || (format::kPageHeader - 1 + bytes) >> shift_ >= there_ - first) [[unlikely]] {
      if (loader_ == nullptr) return false;
      const std::byte* const run = loaded(first, format::overflow_pages(bytes, shift_));
      out = run + format::kPageHeader;
      return run != nullptr;
    }
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
  /// From now on no page is taken to be there: `loader` is asked for each.
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
  PageLoader* loader_ = nullptr;
};

/// Memory that a piece of a file is read into before it takes its place in a window: private, aligned to
/// 2 MiB, of huge pages where there are any, not inherited by a forked child, not dumped.
class Staging {
 public:
  Staging() noexcept = default;
  /// `bytes`: a multiple of 2 MiB.  ENOMEM.
  static Result<Staging> make(std::size_t bytes) noexcept;
  /// Memory of a chunk file (node/chunk_file.h), which is like that but for being shared.
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
  /// As memory for anything else; this one is empty then.
  Mapping take() noexcept { return std::move(mapping_); }
  /// In a forked child: these addresses are free, or somebody else's.
  void forget() noexcept { (void)mapping_.release(); }

 private:
  friend class Window;
  Mapping mapping_;
  bool is_shared_ = false;
};

/// How a window's pieces change places: mremap(2) and mmap(2), but for tests of what happens when they fail.
struct WindowCalls {
  void* (*mremap)(void* from, std::size_t bytes, void* to) noexcept;
  /// A second mapping, at `to`, of what the shared mapping `from` maps.
  void* (*duplicate)(void* from, std::size_t bytes, void* to) noexcept;
  /// Addresses without memory.
  void* (*reserve)(void* at, std::size_t bytes) noexcept;
};
/// The calls that all windows of the process use.  Tests replace them while no other thread uses a window.
WindowCalls& window_calls() noexcept;

/// Owns the range.  Its addresses do not change after it is made; shared by all transactions that began with
/// it, and by environments on the same file.
class Window {
 public:
  /// The granularity of publish and restore, bytes.
  static constexpr std::size_t kHugePage = lmdbio::kHugePage;

  /// Maps `length` bytes (may exceed the file) of `fd` for reading, aligned to 2 MiB.  `no_readahead`: as
  /// MDB_NORDAHEAD.  `page_size` is a power of two.  `capacity`: see capacity().  ENOMEM: no address space.
  static Result<Window> map(int fd, std::uint64_t length, std::size_t page_size, bool no_readahead,
                            std::uint64_t capacity = 0) noexcept;
  /// The same addresses without the file: nothing may be read before it was published.
  static Result<Window> reserve(std::uint64_t length, std::size_t page_size) noexcept;
  /// As map(), or the window that another environment of this process has of the same file, `id`, made alike.
  /// `length` is the map size.  The window is shorter where address space is scarce: under RLIMIT_AS, and
  /// when the windows of the process take terabytes.  Then it covers the first `used` bytes, with room to
  /// grow.
  static Result<std::shared_ptr<Window>> shared(int fd, const FileIdentity& id, std::uint64_t length,
                                                std::size_t page_size, bool no_readahead,
                                                std::uint64_t used) noexcept;
  /// Gives up addresses that no view has used, of all shared windows.  False: there are none.
  static bool shrink_all() noexcept;
  /// Over the caller's bytes, which outlive the window (tests, fuzzing).
  static Window over(Bytes bytes, std::size_t page_size) noexcept;

  /// A view of the first `pages` pages (cut to the window's length).
  WindowView view(std::uint64_t pages) const noexcept;
  /// Bytes; changes by grow() and shrink_all().
  std::uint64_t length() const noexcept { return __atomic_load_n(&length_, __ATOMIC_SEQ_CST); }
  /// What length() may become, bytes.
  std::uint64_t capacity() const noexcept { return capacity_; }
  /// Makes the window at least `bytes` long, at the same addresses.  False: it is shorter, as before.  Any
  /// thread.
  bool grow(std::uint64_t bytes) noexcept;
  /// The first `bytes`, or as many of them as the result says, are never given up.  Any thread.
  std::uint64_t hold(std::uint64_t bytes) const noexcept;
  const std::byte* base() const noexcept { return base_; }
  /// The two meta pages as the file has them now, whatever is published.  Who has read them asks again: the
  /// address changes once, before anything is published.  Null: the window has no file.
  const std::byte* metas() const noexcept { return __atomic_load_n(&metas_, __ATOMIC_ACQUIRE); }
  unsigned page_shift() const noexcept { return shift_; }
  /// False if reserve() made it.
  bool has_file() const noexcept { return has_file_; }

  /// The first `bytes` of `staging` become the window's at `offset`, a multiple of kHugePage, read-only; they
  /// are what the file holds there.  What is left of the staging is unmapped.  False: no memory for it
  /// (vm.max_map_count), or not prepared: nothing has changed, the staging is as it was.
  bool publish(std::uint64_t offset, std::size_t bytes, Staging& staging) noexcept;
  /// Makes publish() and restore() work for the first `bytes` of the file, by a second mapping of it, which
  /// costs addresses alone: no descriptor is needed then, which the program may have closed.  For more bytes
  /// it is called again.  False: no addresses.  Without a file nothing needs to be prepared.
  bool prepare_restore(std::uint64_t bytes) noexcept;
  /// The piece becomes a mapping of the window's file again; without a file it becomes addresses without
  /// memory. False: nothing has changed.
  bool restore(std::uint64_t offset, std::uint64_t bytes) noexcept;
  /// Takes back what `no_readahead` asked for, or asks for it again.  Without it: nothing.
  void use_readahead(bool on) noexcept;

 private:
  Window() = default;
  bool grow_locked(std::uint64_t bytes) noexcept;
  bool shrink_locked() noexcept;
  std::byte* at(std::uint64_t offset) const noexcept { return const_cast<std::byte*>(base_) + offset; }
  Mapping mapping_;  ///< changes its size under the lock of lock_shared_windows()
  Mapping twin_;     ///< of prepare_restore(): the start of the file as mapping_ maps it
  Mapping apart_;    ///< likewise: the meta pages
  const std::byte* base_ = nullptr;
  const std::byte* metas_ = nullptr;
  std::uint64_t length_ = 0, capacity_ = 0;
  mutable std::uint64_t held_ = 0;  ///< of hold()
  unsigned shift_ = 12;
  bool no_readahead_ = false, has_file_ = true;
  bool readahead_ = false;  ///< in spite of no_readahead_, for now
};

/// Around a fork: the list of shared windows is held still.
void lock_shared_windows() noexcept;
void unlock_shared_windows() noexcept;

}  // namespace lmdbio::cache
