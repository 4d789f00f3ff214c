// What must be known of a file before the real library touches it, and why it could not open one.
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

/// The data file of an environment at `path`, opened with `flags` (MDB_NOSUBDIR).
std::string data_file(const char* path, unsigned flags);
/// The same without an allocation.  False: it is longer than a path may be.
bool data_file(const char* path, unsigned flags, std::span<char> out) noexcept;

/// A descriptor in the program's table, which the program may close, and give the number to another file.
class KeptFd {
 public:
  KeptFd() noexcept = default;
  KeptFd(const KeptFd&) = delete;
  KeptFd& operator=(const KeptFd&) = delete;
  ~KeptFd() { reset(); }

  /// Takes `fd` over.
  void keep(UniqueFd fd) noexcept;
  /// Opens `file` if nothing is open and it is a regular file.
  void open(const char* file) noexcept;
  int get() const noexcept { return fd_.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  /// Forgets it, if the program has put another file under the number.
  void check() noexcept;
  /// Closes it, if it is the file that it was.
  void reset() noexcept;

 private:
  UniqueFd fd_;
  FileIdentity id_;
};

/// Before a read-only open.  Not ok (MDB_INVALID, MDB_CORRUPTED; logged): stock would die of the file's metas
/// (db::prove_metas) or wait for ever (a pipe).  All else that may be wrong stock finds itself.  `local`: the
/// file is known to be on a local file system.  A local file that was proven before, and has not changed
/// since, is not opened.  Any thread; allocates nothing.
///
/// Closing the file drops locks that the program has on it (fcntl(2)).  If there may be any, it stays open in
/// `keep`.
Status prove_openable(const char* file, KeptFd& keep, bool& local) noexcept;

/// After stock refused a read-only open: one line that says what is wrong with the file, if something is.
/// `fd`: as prove_openable() left it.
void explain_refusal(const std::string& file, const KeptFd& fd) noexcept;

/// Before a compacting copy by `real`, in which stock walks the tree without checks: all that it will touch
/// is walked with ours.  MDB_CORRUPTED or what stock would say, logged, if it must not be started.  `of`: the
/// transaction whose snapshot is copied; null: the newest.  EBUSY: a writer changes the file all the time,
/// and there are no locks to keep it from that.
Status prove_copyable(EnvHandle& env, MDB_env* real, const ReadTxn* of);

}  // namespace lmdbio::compat
