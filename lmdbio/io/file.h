// A file that is read: opened directly (O_DIRECT) where that works, its size, its identity.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/result.h"
#include "lmdbio/base/unique_fd.h"
#include "lmdbio/io/private_table.h"

namespace lmdbio {

/// What tells one file, and one state of its contents, from another on the same machine.
struct FileIdentity {
  std::uint64_t dev = 0;
  std::uint64_t ino = 0;
  std::uint64_t size = 0;  // bytes
  std::int64_t mtime_ns = 0;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

/// Where the program's file can be opened anew.
struct Origin {
  int fd;            ///< the program's descriptor: it may be another file's by now
  const char* path;  ///< absolute; null: not known
  FileIdentity id;   ///< which file it was
};

/// What this machine knows of the size of `fd`'s file, without a request to the server of a network file
/// system (fstat(2) makes one whenever a read has changed the time of access); 0: it cannot be had.
std::uint64_t size_known_here(int fd) noexcept;

/// A regular file opened for reading.  Threads may share one.
///
/// Its descriptor lies in the table of the thread that opened it, or, if keep() made it, in the private
/// table, where the program cannot close it (private_table.h).  In a forked child a kept file is opened anew
/// when it is first used.
class File {
 public:
  enum class Mode : unsigned char { direct_if_possible, buffered };
  enum class Take : unsigned char { borrow, duplicate };
  /// How a file is read that is opened anew.
  enum class Kind : unsigned char {
    buffered,  ///< through the page cache
    direct,    ///< past it
    exact,     ///< through the page cache, and the kernel reads nothing beyond what is asked for
    shared,    ///< a duplicate of the program's descriptor (Linux 5.6): nothing is opened
  };

  /// Close-on-exec and read-only; needs read permission, not ownership.  A directory is EISDIR, anything else
  /// that is not a regular file EINVAL; other errors as open(2).  That direct reads do not work here is no
  /// error: direct() tells.
  static Result<File> open(const char* path, Mode mode) noexcept;
  /// The same for an open descriptor, whose O_DIRECT flag decides direct().  Borrowed, it is not closed here
  /// and must outlive the File; duplicated, it shares flags and offset with the original.
  static Result<File> from_fd(int fd, Take take) noexcept;

  /// The file behind an open descriptor opened anew by way of /proc, close-on-exec and read-only, whatever
  /// has become of its name, in the calling thread's table.  Direct: with O_DIRECT and reads that work.  Not
  /// that: ENOTSUP or as open(2), among them EINVAL (no direct reads), ENOENT (no /proc), EACCES (read
  /// permission has gone since); ESTALE if it is another file; as from_fd() for what is no regular file.  As
  /// any close(2), that of the File drops this process's POSIX record locks on the file, if it has any in
  /// this table.
  static Result<File> reopen(int fd, Kind kind) noexcept;
  /// The file opened anew in the private table: by way of the program's descriptor, or, where that is no
  /// longer this file, by its path.  Errors as reopen(); EBADF: there is no private table; ESTALE: neither is
  /// this file.  Waits for another thread.
  static Result<File> keep(const Origin& origin, Kind kind) noexcept;
  /// The program has this file open in another place too: where it is opened anew later, this one is tried
  /// first.
  void add_origin(const Origin& origin) const noexcept;
  /// Around a fork.
  static void lock_origins() noexcept;
  static void unlock_origins() noexcept;
  /// This file opened anew, in the same table.
  Result<File> again(Kind kind) const noexcept;

  /// pthread_create(3) of a thread that can use fd(), all signals blocked.  0 or an errno.
  int start_thread(pthread_t& thread, void* (*run)(void*), void* argument) const noexcept;

  /// Calls use(descriptor) where the descriptor is valid: here, or in a thread of the private table, for
  /// which it waits, with the program's signals let through: no SignalSafeMutex may be held.  False: it was
  /// not called, since the file could not be opened in this forked child.  Must not throw.
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
  /// For a thread in whose table it is: a thread of the private table for a kept file.  -1: it could not be
  /// opened in this forked child.
  int fd() const noexcept { return home_ == nullptr ? fd_ : here(); }
  /// keep() made it.
  bool kept() const noexcept { return home_ != nullptr; }
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
  /// Where a kept file is, and how it is opened again in a forked child.
  class Home;
  class Origins;
  File(UniqueFd owned, int fd, std::size_t direct_alignment) noexcept;
  static Result<File> open_home(std::shared_ptr<Home> home) noexcept;
  int here() const noexcept;
  std::shared_ptr<Home> home_;  // null: the descriptor is the opening thread's
  UniqueFd owned_;              // empty if borrowed or kept
  int fd_;
  bool direct_;
  std::size_t alignment_;
};

/// `fd` is an open descriptor of the inode `id`, as far as this machine knows: no server is asked.  What the
/// program may have put under the number of a descriptor of ours is told by it.
bool is_inode(int fd, const FileIdentity& id) noexcept;
/// Both questions in one system call.  None: another file.
std::optional<std::uint64_t> size_if_inode(int fd, const FileIdentity& id) noexcept;
/// As File::identity().
Result<FileIdentity> identity_of(int fd) noexcept;
FileIdentity identity_of(const struct stat& st) noexcept;

}  // namespace lmdbio
