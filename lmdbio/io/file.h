// A file that is read: opened directly (O_DIRECT) where that works, its size, its identity.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lmdbio/base/result.h"
#include "lmdbio/base/unique_fd.h"

namespace lmdbio {

/// What tells one file, and one state of its contents, from another on the same machine.
struct FileIdentity {
  std::uint64_t dev = 0;
  std::uint64_t ino = 0;
  std::uint64_t size = 0;  // bytes
  std::int64_t mtime_ns = 0;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

/// What this machine knows of the size of `fd`'s file, without a request to the server of a network file
/// system (fstat(2) makes one whenever a read has changed the time of access); 0: it cannot be had.
std::uint64_t size_known_here(int fd) noexcept;

/// A regular file opened for reading.  Threads may share one.
class File {
 public:
  enum class Mode : unsigned char { direct_if_possible, buffered };
  enum class Take : unsigned char { borrow, duplicate };

  /// Close-on-exec and read-only; needs read permission, not ownership.  A directory is EISDIR, anything else
  /// that is not a regular file EINVAL; other errors as open(2).  That direct reads do not work here is no
  /// error: direct() tells.
  static Result<File> open(const char* path, Mode mode) noexcept;
  /// The same for an open descriptor, whose O_DIRECT flag decides direct().  Borrowed, it is not closed here
  /// and must outlive the File; duplicated, it shares flags and offset with the original.
  static Result<File> from_fd(int fd, Take take) noexcept;

  /// The file behind an open descriptor opened anew by way of /proc, close-on-exec and read-only, whatever
  /// has become of its name: with O_DIRECT and reads that work, or through the page cache.  Not that: ENOTSUP
  /// or as open(2), among them EINVAL (no direct reads), ENOENT (no /proc), EACCES (read permission has gone
  /// since); ESTALE if it is another file; as from_fd() for what is no regular file.  The caller falls back
  /// to from_fd(). As any close(2), that of the File drops this process's POSIX record locks on the file, if
  /// it has any.
  static Result<File> reopen_direct(int fd) noexcept;
  static Result<File> reopen_buffered(int fd) noexcept;

  int fd() const noexcept { return fd_; }
  /// Reads go past the page cache.
  bool direct() const noexcept { return direct_; }
  /// What offset, length and memory of a read must be multiples of: 1 unless direct.
  std::size_t alignment() const noexcept { return alignment_; }

  /// Both ask the kernel at each call.
  Result<FileIdentity> identity() const noexcept;
  Result<std::uint64_t> size() const noexcept;
  /// It is the same inode as `id`, as far as this machine knows: no server is asked.
  bool is_inode(const FileIdentity& id) const noexcept;

 private:
  File(UniqueFd owned, int fd, std::size_t direct_alignment) noexcept;

  UniqueFd owned_;  // empty if borrowed
  int fd_;
  bool direct_;
  std::size_t alignment_;
};

}  // namespace lmdbio
