#include "lmdbio/python/environment.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <map>
#include <utility>

namespace lmdbio::python {

namespace {

/// Maximum number of named databases that one environment has open.
constexpr MDB_dbi kDatabases = 128;

struct File {
  dev_t device;
  ino_t inode;
  auto operator<=>(const File&) const = default;
};

/// The table of the open environments of one process.  A forked child makes its own table, because another
/// thread of the parent may have held the mutex at the fork.
struct Opened {
  const pid_t process = ::getpid();
  std::recursive_mutex mutex;  ///< also held while an environment is closed
  std::map<File, std::weak_ptr<Environment>> files;
};
// The table is never destroyed, because readers may outlive static objects.
Opened& opened() {
  static std::atomic<Opened*> all{nullptr};
  Opened* now = all.load();
  while (now == nullptr || now->process != ::getpid()) {
    auto made = std::make_unique<Opened>();
    if (all.compare_exchange_strong(now, made.get())) now = made.release();
  }
  return *now;
}

/// Returns the path and the flags for mdb_env_open.  Like lmdbio_reader_open, replaces the path of a
/// directory's data file by that of the directory.  Otherwise the reader would use another lock file, and
/// writers would not see the reader.
std::pair<std::string, unsigned> place_of(const std::string& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0 || !S_ISREG(st.st_mode)) return {path, 0};
  const std::size_t slash = path.rfind('/');
  const std::size_t name = slash == std::string::npos ? 0 : slash + 1;
  if (path.substr(name) != "data.mdb" || ::access((path + "-lock").c_str(), F_OK) == 0)
    return {path, MDB_NOSUBDIR};
  if (slash == std::string::npos) return {".", 0};
  return {path.substr(0, slash == 0 ? 1 : slash), 0};
}

int failed(int rc, const std::string& what, std::string& why) {
  why = what + ": " + mdb_strerror(rc);
  return rc;
}

}  // namespace

Environment::Environment(MDB_env* env, std::string path, bool locked)
    : env_(env), path_(std::move(path)), locked_(locked), pid_(::getpid()) {}

Environment::~Environment() {
  if (!ours()) return;
  const std::lock_guard guard(opened().mutex);  // a thread that opens the file again must wait
  mdb_env_close(env_);
}

bool Environment::ours() const noexcept { return ::getpid() == pid_; }

int Environment::open(const std::string& path, bool lock, std::shared_ptr<Environment>& out,
                      std::string& why) {
  const auto [place, flags] = place_of(path);
  const std::string data = flags == 0 ? place + "/data.mdb" : place;
  Opened& all = opened();
  const std::lock_guard guard(all.mutex);
  struct stat st {};
  const bool known = ::stat(data.c_str(), &st) == 0;
  const File file{st.st_dev, st.st_ino};
  if (known) {
    if (const auto found = all.files.find(file); found != all.files.end()) out = found->second.lock();
    if (out != nullptr && lock && !out->locked_) {
      out.reset();
      why = path + ": another reader of this process has the file open with lock=False";
      return EINVAL;
    }
    if (out != nullptr) return 0;
  }
  MDB_env* env = nullptr;
  int rc = mdb_env_create(&env);
  if (rc != 0) return failed(rc, path, why);
  std::shared_ptr<Environment> made(new Environment(env, path, lock));
  rc = mdb_env_set_maxdbs(env, kDatabases);
  if (rc == 0)
    rc = mdb_env_open(env, place.c_str(), MDB_RDONLY | MDB_NOTLS | flags | (lock ? 0U : MDB_NOLOCK), 0644);
  if (rc == EBADF && known && st.st_size == 0) {  // LMDB's error for an empty file
    why = path + ": empty: nothing has been written to this database yet";
    return MDB_INVALID;
  }
  if (rc == ENOENT && flags == 0 && ::access(place.c_str(), F_OK) == 0) {
    why = path + ": a directory without data.mdb";
    return rc;
  }
  if (rc != 0) return failed(rc, path, why);
  if (known) {
    std::erase_if(all.files, [](const auto& f) { return f.second.expired(); });
    all.files[file] = made;
  }
  out = std::move(made);
  return 0;
}

// A transaction must be committed before other transactions can use the database handles that it has opened.
// Only one transaction at a time may open handles.
int Environment::database(const char* name, MDB_dbi& out, std::string& why) {
  const std::lock_guard guard(mutex_);
  MDB_txn* txn = nullptr;
  int rc = mdb_txn_begin(env_, nullptr, MDB_RDONLY, &txn);
  if (rc != 0) return failed(rc, path_, why);
  rc = mdb_dbi_open(txn, name, 0, &out);
  if (rc == 0)
    rc = mdb_txn_commit(txn);
  else
    mdb_txn_abort(txn);
  return rc == 0 ? 0 : failed(rc, name == nullptr ? path_ : path_ + ": database " + name, why);
}

int Snapshot::begin(std::shared_ptr<Environment> env, std::unique_ptr<Snapshot>& out, std::string& why) {
  MDB_txn* txn = nullptr;
  if (const int rc = mdb_txn_begin(env->handle(), nullptr, MDB_RDONLY, &txn); rc != 0)
    return failed(rc, env->path(), why);
  out.reset(new Snapshot(std::move(env), txn));
  return 0;
}

Snapshot::~Snapshot() {
  if (env_->ours()) mdb_txn_abort(txn_);
}

}  // namespace lmdbio::python
