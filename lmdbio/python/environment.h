// LMDB environments, which the readers of a process share: LMDB allows only one open environment per file.
#pragma once

#include <lmdb.h>
#include <sys/types.h>

#include <memory>
#include <mutex>
#include <string>

namespace lmdbio::python {

/// An environment that is open read-only.  Any thread.  Callers release the GIL around calls that may wait.
class Environment {
 public:
  /// Returns the environment that this process has open for the file, or opens one.  `path` is that of
  /// lmdbio_reader_open.  With `lock` false, a new environment is opened with MDB_NOLOCK.  With `lock` true,
  /// returns EINVAL if the environment is open without locks.  Returns 0, or an errno or MDB_ code with the
  /// reason in `why`.
  static int open(const std::string& path, bool lock, std::shared_ptr<Environment>& out, std::string& why);
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment();

  const std::string& path() const noexcept { return path_; }
  MDB_env* handle() const noexcept { return env_; }
  /// Opens a named database, or the main one if `name` is null, as of the newest commit.  Returns as open().
  int database(const char* name, MDB_dbi& out, std::string& why);
  /// Returns false in a forked child, which cannot use the environment and does not close it.
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
