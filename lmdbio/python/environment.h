// Open LMDB environments, which the readers of a process share: LMDB allows one for each file.
#pragma once

#include <lmdb.h>
#include <sys/types.h>

#include <memory>
#include <mutex>
#include <string>

namespace lmdbio::python {

/// An environment of the library, opened read-only.  Any thread; without the GIL where it may wait.
class Environment {
 public:
  /// The one that this process has open for the file already, or a new one.  `path`: as for
  /// lmdbio_reader_open.  `lock`: false: MDB_NOLOCK, for a new one; true: EINVAL if it is open so.  0, or an
  /// errno or MDB_ code, and `why`.
  static int open(const std::string& path, bool lock, std::shared_ptr<Environment>& out, std::string& why);
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment();

  const std::string& path() const noexcept { return path_; }
  MDB_env* handle() const noexcept { return env_; }
  /// The handle of a named database, null: of the main one, as seen by the newest commit.
  int database(const char* name, MDB_dbi& out, std::string& why);
  /// False in a forked child, where the environment is of no use and is not closed.
  bool ours() const noexcept;

 private:
  Environment(MDB_env* env, std::string path, bool locked);

  MDB_env* const env_;
  const std::string path_;
  const bool locked_;
  const pid_t pid_;
  std::mutex mutex_;  ///< one thread at a time opens databases
};

/// A read transaction, which is a snapshot.
class Snapshot {
 public:
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
