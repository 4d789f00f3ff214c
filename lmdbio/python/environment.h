// LMDB environments.  The readers of a process share them, because LMDB allows only one open environment per
// file.
#pragma once

#include <lmdb.h>
#include <sys/types.h>

#include <memory>
#include <mutex>
#include <string>

namespace lmdbio::python {

/// A read-only environment.  Any thread.  Callers must release the GIL during calls that may wait.
class Environment {
 public:
  /// Sets `out` to the environment that this process has open for the file, or opens a new one.  `path`: as
  /// for lmdbio_reader_open.  If `lock` is false, opens a new environment with MDB_NOLOCK.  If `lock` is
  /// true, returns EINVAL if the environment is open without locks.  Returns 0, or an errno or MDB_ code with
  /// the reason in `why`.
  static int open(const std::string& path, bool lock, std::shared_ptr<Environment>& out, std::string& why);
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment();

  const std::string& path() const noexcept { return path_; }
  MDB_env* handle() const noexcept { return env_; }
  /// Opens a named database of the newest snapshot, or the main one if `name` is null.  Returns as open().
  int database(const char* name, MDB_dbi& out, std::string& why);
  /// Returns false in a forked child.  The child cannot use the environment, and does not close it.
  bool ours() const noexcept;

 private:
  Environment(MDB_env* env, std::string path, bool locked);

  MDB_env* const env_;
  const std::string path_;
  const bool locked_;
  const pid_t pid_;
  std::mutex mutex_;  ///< held while a database is opened
};

/// Owns a read transaction, which is a snapshot.
class Snapshot {
 public:
  /// Begins a transaction.  Returns 0, or an errno or MDB_ code with the reason in `why`.
  static int begin(std::shared_ptr<Environment> env, std::unique_ptr<Snapshot>& out, std::string& why);
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;
  ~Snapshot();

  MDB_txn* handle() const noexcept { return txn_; }
  Environment& environment() const noexcept { return *env_; }

 private:
  Snapshot(std::shared_ptr<Environment> env, MDB_txn* txn) noexcept : env_(std::move(env)), txn_(txn) {}

  const std::shared_ptr<Environment> env_;
  MDB_txn* const txn_;
};

}  // namespace lmdbio::python
