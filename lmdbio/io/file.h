// A regular file that is open for reading, with O_DIRECT if that works.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/result.h"
#include "lmdbio/base/unique_fd.h"
#include "lmdbio/io/file_identity.h"
#include "lmdbio/io/private_table.h"

namespace lmdbio {

/// Tells how to reopen a file that the program has open.
struct Origin {
  int fd;            ///< the program's descriptor, or -1; may belong to another file by now
  const char* path;  ///< absolute; null if it is not known
  FileIdentity id;   ///< identity of the file
};

/// A regular file that is open for reading.  Any thread.
///
/// The descriptor is in the descriptor table of the thread that opened the file.  A kept file (keep()) has
/// its descriptor in the private table instead, where the program cannot close it (private_table.h).  A
/// forked child reopens a kept file at its first use.
class File {
 public:
  enum class Mode : unsigned char { direct_if_possible, buffered };
  enum class Take : unsigned char { borrow, duplicate };
  /// How a reopened file is read.
  enum class Kind : unsigned char {
    buffered,  ///< through the page cache
    direct,    ///< past the page cache (O_DIRECT)
    exact,     ///< through the page cache, without the kernel's read-ahead
    shared,    ///< a duplicate of the program's descriptor (Linux 5.6); nothing is opened
  };

  /// Opens `path`, close-on-exec and read-only.  Needs read permission, but not ownership.  If direct reads
  /// do not work here, opens the file for buffered reads, and direct() returns false.  Errors: EISDIR for a
  /// directory, EINVAL for anything else that is not a regular file, others as open(2).
  static Result<File> open(const char* path, Mode mode) noexcept;
  /// Makes a File of an open descriptor.  direct() returns whether the descriptor has the flag O_DIRECT.
  /// With Take::borrow, the descriptor must outlive the File, which does not close it.  With Take::duplicate,
  /// the File has a duplicate that shares flags and offset with the original.  Errors: as open().
  static Result<File> from_fd(int fd, Take take) noexcept;

  /// Reopens the file behind an open descriptor through /proc, close-on-exec and read-only, in the calling
  /// thread's descriptor table.  The file may have been renamed or removed meanwhile.  With Kind::direct,
  /// succeeds only if direct reads work.  As every close(2) does, closing the File drops the POSIX record
  /// locks that this process has on the file in this table.
  ///
  /// Errors: EINVAL or ENOTSUP if direct reads do not work, ENOENT without /proc, EACCES if the read
  /// permission has been revoked, ESTALE if the descriptor leads to another file, others as open(2) and
  /// from_fd().
  static Result<File> reopen(int fd, Kind kind) noexcept;
  /// Opens the file in the private table, through the program's descriptor, or by its path if that descriptor
  /// is no longer open on this file.  Waits for another thread.  Errors: EBADF without a private table,
  /// ESTALE if neither the descriptor nor the path leads to this file, others as reopen().
  static Result<File> keep(const Origin& origin, Kind kind) noexcept;
  /// Records one more origin of a kept file, which later reopens try first.  Does nothing for a file that is
  /// not kept.
  void add_origin(const Origin& origin) const noexcept;
  /// Lock and unlock the origins of all files around a fork.
  static void lock_origins() noexcept;
  static void unlock_origins() noexcept;
  /// Opens this file once more, in the same table.  Errors: as keep() or reopen().
  Result<File> again(Kind kind) const noexcept;

  /// Starts a thread that can use fd(), with all signals blocked.  Returns 0 or an errno, as
  /// pthread_create(3).
  int start_thread(pthread_t& thread, void* (*run)(void*), void* argument) const noexcept;

  /// Calls use(descriptor) in a thread in which the descriptor is valid.  This is a thread of the private
  /// table for a kept file, and the calling thread otherwise.  The caller waits for that thread with the
  /// program's signals unblocked, so it must not hold a SignalSafeMutex.  Returns false in a forked child in
  /// which the file could not be opened, and in a child that was forked during the call.  `use` must not
  /// throw.
  template <class F>
  bool with_fd(F&& use) const noexcept {
    if (home_ == nullptr) {
      use(fd_);
      return true;
    }
    const AsyncSignalsAllowed program;
    bool used = false;
    const bool ran = PrivateTable::run([&]() noexcept {
      const int fd = here();
      if (fd >= 0) use(fd);
      used = fd >= 0;
    });
    return ran && used;
  }
  /// Returns the descriptor.  For a kept file, call this in a thread of the private table, in which the
  /// descriptor is valid.  Returns -1 if the file could not be opened in this forked child.
  int fd() const noexcept { return home_ == nullptr ? fd_ : here(); }
  /// True if keep() opened this file.
  bool kept() const noexcept { return home_ != nullptr; }
  /// True if reads bypass the page cache.
  bool direct() const noexcept { return direct_; }
  /// Offset, length and memory of each read must be multiples of this, in bytes.  1 unless direct().
  std::size_t alignment() const noexcept { return alignment_; }

  /// identity() and size() ask the kernel at each call.
  Result<FileIdentity> identity() const noexcept;
  Result<std::uint64_t> size() const noexcept;
  /// True if this file is the inode `id`, as far as this machine knows.  Sends no request to a server.
  bool is_inode(const FileIdentity& id) const noexcept;

 private:
  /// The descriptor of a kept file, and the means to reopen it in a forked child.
  class Home;
  class Origins;
  File(UniqueFd owned, int fd, std::size_t direct_alignment) noexcept;
  static Result<File> open_home(std::shared_ptr<Home> home) noexcept;
  int here() const noexcept;
  std::shared_ptr<Home> home_;  // null if the descriptor is in the table of the thread that opened it
  UniqueFd owned_;              // empty if borrowed or kept
  int fd_;
  bool direct_;
  std::size_t alignment_;
};

}  // namespace lmdbio
