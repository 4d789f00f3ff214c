// Checks a file before the real library uses it, and explains why the library could not open it.
#pragma once

#include <lmdb.h>

#include <span>
#include <string>

#include "lmdbio/base/status.h"
#include "lmdbio/base/unique_fd.h"
#include "lmdbio/io/file.h"

namespace lmdbio::compat {

struct EnvHandle;
struct ReadTxn;
struct Stock;

/// Returns the data file of an environment at `path` that is opened with `flags` (MDB_NOSUBDIR).
std::string data_file(const char* path, unsigned flags);
/// Does the same without an allocation.  Returns false if the path is too long for `out`.
bool data_file(const char* path, unsigned flags, std::span<char> out) noexcept;

/// A descriptor in the program's table.  The program may close it and give its number to another file.
class KeptFd {
 public:
  KeptFd() noexcept = default;
  KeptFd(const KeptFd&) = delete;
  KeptFd& operator=(const KeptFd&) = delete;
  ~KeptFd() { reset(); }

  /// Takes ownership of `fd`.
  void keep(UniqueFd fd) noexcept;
  /// Opens `file` if nothing is open and it is a regular file.
  void open(const char* file) noexcept;
  int get() const noexcept { return fd_.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  /// Forgets the descriptor if the program has put another file under its number.
  void check() noexcept;
  /// Closes the descriptor if it still belongs to the same file.
  void reset() noexcept;
  /// Does the same, unless a process may have a POSIX lock on the file, which this process would lose.
  void release() noexcept;

 private:
  UniqueFd fd_;
  FileIdentity id_;
};

/// What is known of a file before it is opened.
struct Proof {
  bool local = false;          ///< it is on a local file system
  bool other_release = false;  ///< it has the format of the release that `stock` is not; its metas are good
};

/// Checks the file before a read-only open by `stock`.  Returns MDB_INVALID or MDB_CORRUPTED, logged, if
/// stock would crash on the file's metas (tree::prove_metas) or wait forever (a pipe).  Stock itself detects
/// all other faults.  A local file that was checked before and has not changed is not opened.  Any thread;
/// allocates nothing.
///
/// Closing the file drops locks that the program has on it (fcntl(2)).  If there may be any, and if the file
/// is one of the other release, it stays open in `keep`.
Status prove_openable(const char* file, const Stock& stock, KeptFd& keep, Proof& proof) noexcept;

/// Called after stock refused a read-only open.  Logs one line if something is wrong with the file.  `fd` is
/// as prove_openable() left it.
void explain_refusal(const std::string& file, const KeptFd& fd) noexcept;

/// Checks the pages that a compacting copy by `real` will read, because stock walks the tree without checks.
/// Returns MDB_CORRUPTED or stock's error, logged, if the copy must not start.  `of` is the transaction whose
/// snapshot is copied; null: the newest snapshot.  Returns EBUSY if a writer keeps changing the file and no
/// lock prevents it.
Status prove_copyable(EnvHandle& env, MDB_env* real, const ReadTxn* of);

}  // namespace lmdbio::compat
