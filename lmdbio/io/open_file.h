// A database file as one process has it open: one set of descriptors for walks, lookups, transactions that
// prefetch, readers and index builds.
//
// Nothing else opens a database file to read its pages (tests/support/check_layers.py).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "lmdbio/base/result.h"
#include "lmdbio/io/file.h"
#include "lmdbio/io/residency.h"

namespace lmdbio {

/// Any thread.  Its descriptors lie in the private table and are opened anew in a forked child at their first
/// use there (File::keep); those of adopt() are as they were given.  They are closed with the last owner,
/// which may wait for another thread: no SignalSafeMutex may be held then.
class OpenFile {
 public:
  /// What is opened at once.  The others are opened when they are first asked for.
  enum class With : unsigned char {
    buffered_alone,
    direct,       ///< buffered() and direct()
    exact_alone,  ///< for readers, which need one descriptor if they read through the page cache
  };

  /// The process's one for the inode of `origin`, opened if nobody has it.  An open of a file in user space
  /// may drop what the page cache has of it: that is found out by the first open that is made anyway, and
  /// where it does, base() is a duplicate of the program's descriptor.  With asynchronous
  /// signals blocked, if a handler may fork.  Errors: as File::keep.
  static Result<std::shared_ptr<const OpenFile>> get(const Origin& origin, With with) noexcept;
  /// For a process without a program's descriptors, in the table of the calling thread: nobody else shares
  /// it.  Errors: as File::open.
  static Result<std::shared_ptr<const OpenFile>> open(const char* path) noexcept;
  /// The same for a file that is open for buffered reads.  Null: out of memory.
  static std::shared_ptr<const OpenFile> adopt(File buffered) noexcept;

  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  /// The descriptor that was opened first, through the page cache: for what does not depend on the kernel's
  /// read-ahead, such as a mapping or the file's length.
  const File& base() const noexcept { return base_; }
  /// Through the page cache, with the kernel's read-ahead.  base(), if another descriptor cannot be had.
  const File& buffered() const noexcept {
    if (!base_is_exact_ || opens_drop_cache_) return base_;
    const File* const own = get_or_open(buffered_, File::Kind::buffered);
    return own != nullptr ? *own : base_;
  }
  /// Past the page cache; opened at the first call.  Null: it cannot be had.  Once half of the numbers that
  /// RLIMIT_NOFILE allows are in use, direct(), buffered() and exact() open no further descriptor: the other
  /// half is for files that have none yet.
  const File* direct() const noexcept { return get_or_open(direct_, File::Kind::direct); }
  /// Through the page cache, without read-ahead; opened at the first call.  Null: it cannot be had, or its
  /// open would drop the page cache.
  const File* exact() const noexcept {
    if (base_is_exact_) return &base_;
    return opens_drop_cache_ ? nullptr : get_or_open(exact_, File::Kind::exact);
  }

  /// Each open of the file drops what the page cache has of it, the program's own opens as well: FUSE without
  /// FOPEN_KEEP_CACHE, which is GlusterFS's default.
  bool opens_drop_cache() const noexcept { return opens_drop_cache_; }
  /// As is_local_file_system().
  bool local() const noexcept { return local_; }
  /// As kernel_readahead(), bytes.
  std::uint64_t readahead() const noexcept { return readahead_; }
  const FileIdentity& identity() const noexcept { return id_; }

  /// What tells how much of the file is in the page cache, asked by way of the program's descriptor as long
  /// as that is this file: no change of threads.  -1: it has none.  Not to outlive this.
  Residency residency(int programs_fd,
                      Residency::Sampling sampling = Residency::Sampling::yes) const noexcept {
    return {residency_, programs_fd, sampling};
  }

  /// Around a fork: the registry, and where files are opened anew.
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

  File base_;  // constant once it is shared, as what follows but for the files that are opened later
  bool base_is_exact_ = false;
  FileIdentity id_;
  bool opens_drop_cache_ = false, local_ = true;
  std::uint64_t readahead_ = 0;
  Residency residency_;
  mutable Later buffered_, direct_, exact_;
};

}  // namespace lmdbio
