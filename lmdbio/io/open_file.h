// The files through which this process reads a database file: one set of descriptors for walks, lookups,
// prefetching transactions, readers and index builds.
//
// No other code opens a database file to read its pages (tests/support/check_layers.py).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "lmdbio/base/result.h"
#include "lmdbio/io/file.h"
#include "lmdbio/io/residency.h"

namespace lmdbio {

/// The descriptors of one database file.  Any thread.  The descriptors are in the private table.  A forked
/// child reopens each descriptor when it first uses it (File::keep).  A file that was given to adopt() stays
/// as it was.  The last owner closes the descriptors.  Since this may wait for another thread, the last owner
/// must not hold a SignalSafeMutex.
class OpenFile {
 public:
  /// The files that get() opens at once.  All other files are opened at their first use.
  enum class With : unsigned char {
    buffered_alone,
    direct,       ///< buffered() and direct()
    exact_alone,  ///< for readers: one descriptor suffices if they read through the page cache
  };

  /// Returns the process's OpenFile for the inode of `origin`, and opens it if there is none.  On a
  /// user-space file system, opening a file may drop its page cache.  The first open that is necessary anyway
  /// detects this.  If opens drop the page cache, base() is a duplicate of the program's descriptor.  Call
  /// this with asynchronous signals blocked if a signal handler may fork.  Errors: as File::keep.
  static Result<std::shared_ptr<const OpenFile>> get(const Origin& origin, With with) noexcept;
  /// Opens `path` in the calling thread's descriptor table, for a process without a program's descriptors.
  /// The result is not shared with other callers.  Errors: as File::open.
  static Result<std::shared_ptr<const OpenFile>> open(const char* path) noexcept;
  /// As open(), for a file that is already open for buffered reads.  Returns nullptr if memory is short.
  static std::shared_ptr<const OpenFile> adopt(File buffered) noexcept;

  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  /// Returns the descriptor that was opened first, through the page cache.  It is for uses that do not
  /// depend on the kernel's read-ahead, such as a mapping or the file's length.
  const File& base() const noexcept { return base_; }
  /// Returns the file for buffered reads with the kernel's read-ahead, or base() if no other descriptor can
  /// be opened.
  const File& buffered() const noexcept {
    if (!base_is_exact_ || opens_drop_cache_) return base_;
    const File* const own = get_or_open(buffered_, File::Kind::buffered);
    return own != nullptr ? *own : base_;
  }
  /// Returns the file for direct reads, which the first call opens, or nullptr if they are not available.
  /// Once half of the numbers that RLIMIT_NOFILE allows are in use, direct(), buffered() and exact() open no
  /// further descriptor.  The other half is for files that have none yet.
  const File* direct() const noexcept { return get_or_open(direct_, File::Kind::direct); }
  /// Returns the file for buffered reads without read-ahead, which the first call opens.  Returns nullptr if
  /// it is not available, or if the open would drop the page cache.
  const File* exact() const noexcept {
    if (base_is_exact_) return &base_;
    return opens_drop_cache_ ? nullptr : get_or_open(exact_, File::Kind::exact);
  }

  /// Returns true if each open of the file, even by the program, drops its page cache.  This happens on FUSE
  /// without FOPEN_KEEP_CACHE, which is the default of GlusterFS.
  bool opens_drop_cache() const noexcept { return opens_drop_cache_; }
  /// As is_local_file_system().
  bool local() const noexcept { return local_; }
  /// As kernel_readahead(), in bytes.
  std::uint64_t readahead() const noexcept { return readahead_; }
  const FileIdentity& identity() const noexcept { return id_; }

  /// Returns a probe of the page cache for this file.  While the program's descriptor `programs_fd` is open
  /// on this file, the probe uses it, which saves context switches.  -1 means that the program has none.
  /// This object must outlive the probe.
  Residency residency(int programs_fd,
                      Residency::Sampling sampling = Residency::Sampling::yes) const noexcept {
    return {residency_, programs_fd, sampling};
  }

  /// Lock and unlock the registry, and the origins of all files, around a fork.
  static void lock_registry() noexcept;
  static void unlock_registry() noexcept;

 private:
  struct Later {
    std::atomic<const File*> file{nullptr};  ///< owned
    std::atomic<bool> impossible{false};
  };

  explicit OpenFile(File base) noexcept;
  static Result<std::shared_ptr<const OpenFile>> open_here(const Origin& origin, With with) noexcept;
  const File* get_or_open(Later& later, File::Kind kind) const noexcept;
  void learn() noexcept;

  File base_;  // constant once shared, as are the members below, except the Later ones
  bool base_is_exact_ = false;
  FileIdentity id_;
  bool opens_drop_cache_ = false, local_ = true;
  std::uint64_t readahead_ = 0;
  Residency residency_;
  mutable Later buffered_, direct_, exact_;
};

}  // namespace lmdbio
