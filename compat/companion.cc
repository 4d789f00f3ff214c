#include "compat/companion.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <utility>

#include "compat/bounded.h"
#include "compat/guard.h"
#include "compat/prove.h"
#include "lmdbio/base/config.h"
#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/log.h"
#include "lmdbio/window/window.h"

namespace lmdbio::compat {

namespace {

const char* describe(const Stock& stock, int rc) noexcept {
  if (rc == kLocksHang) return "the lock requests hang";
  const char* const text = rc > 0 ? ::strerrordesc_np(rc) : stock.strerror(rc);
  return text != nullptr ? text : "unknown error";
}

/// Returns the log level of a line about reading without locks: a warning for the first one in a process,
/// then info.
LogLevel lockless_level() noexcept {
  static constinit std::atomic<bool> told{false};
  return told.exchange(true) ? LogLevel::info : LogLevel::warn;
}

/// Returns whether an open failed because of the lock file or its locks, not because of the data.
bool is_about_locks(int rc) noexcept {
  switch (rc) {
    case kLocksHang:
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOLCK:
    case ENOSYS:
    case EOPNOTSUPP:
    case EINVAL:
    case ENODEV:  // the lock file cannot be mapped
    case EISDIR:
    case ENXIO:
    case ELOOP:
    case ESPIPE:  // a pipe in its place
    case ENOSPC:
    case EDQUOT:
    case EIO:
    case ETIMEDOUT:
      return true;
    default:
      return false;
  }
}

/// Closes the files that were kept open to preserve the program's locks on them, for all environments.
/// Returns false if there are none.
bool close_proofs(EnvHandle& env) noexcept {
  bool any = static_cast<bool>(env.proof);
  env.proof.reset();
  lock_handles();
  for_each_served([&any](EnvHandle& e) {
    if (e.alone || e.passed() == nullptr || !e.proof) return;  // without a companion: reopen() uses it
    any = true;
    e.proof.reset();
  });
  unlock_handles();
  return any;
}

/// Creates a real environment with the program's settings from before its open.  Returns nullptr on error;
/// `rc` has the code.
MDB_env* make_real(const EnvHandle& env, int& rc) noexcept {
  const Stock& stock = *env.stock;
  const Setup& setup = env.setup;
  MDB_env* made = nullptr;
  if (rc = stock.env_create(&made); rc != 0) return nullptr;
  if (setup.map_bytes != 0) rc = stock.env_set_mapsize(made, setup.map_bytes);
  if (rc == 0 && setup.readers != 0) rc = stock.env_set_maxreaders(made, setup.readers);
  if (rc == 0) rc = stock.env_set_maxdbs(made, env.max_dbs);
  if (rc == 0 && setup.page_bytes != 0) rc = stock.env_set_pagesize(made, setup.page_bytes);
  if (rc == 0 && setup.userctx != nullptr) rc = stock.env_set_userctx(made, setup.userctx);
  if (rc == 0 && setup.assert_function != nullptr) rc = stock.env_set_assert(made, setup.assert_function);
  if (rc == 0) return made;
  stock.env_close(made);
  return nullptr;
}

/// Creates a real environment and opens it by `path`.  Returns nullptr on error; `rc` has the code.
MDB_env* make_open(const EnvHandle& env, const char* path, unsigned flags, int& rc) noexcept {
  MDB_env* const made = make_real(env, rc);
  if (made == nullptr) return nullptr;
  rc = open_bounded(*env.stock, made, path, flags, env.setup.mode, env.local);
  if (rc == 0) return made;
  if (rc != kLocksHang) env.stock->env_close(made);
  return nullptr;
}

/// Returns whether the environment has no reader table: stock itself omits the lock file on a read-only file
/// system.
bool has_no_reader_table(const Stock& stock, MDB_env* real) noexcept {
  bool none = false;
  (void)stock.reader_list(
      real,
      [](const char* text, void* out) {
        *static_cast<bool*>(out) = ::strcmp(text, "(no reader locks)\n") == 0;
        return -1;  // the first line is enough
      },
      &none);
  return none;
}

/// Returns false if the file system has no free blocks for the lock file.  Stock would then die of SIGBUS.
bool lock_file_has_room(const char* path, unsigned flags) {
  struct statvfs space;
  if (::statvfs(path, &space) != 0 || (space.f_flag & ST_RDONLY) != 0) return true;
  constexpr std::uint64_t kLockFileBytes = 64 << 10;  // for a thousand readers
  const std::uint64_t blocks = ::geteuid() == 0 ? space.f_bfree : space.f_bavail;
  if (blocks * space.f_frsize >= kLockFileBytes || space.f_blocks == 0) return true;
  struct stat lock;
  const std::string file =
      (flags & MDB_NOSUBDIR) != 0 ? std::string(path) + "-lock" : std::string(path) + "/lock.mdb";
  // An open and the first slots touch only its first page; the rest is a hole at first.
  return ::stat(file.c_str(), &lock) == 0 && lock.st_size > 0 && lock.st_blocks > 0;
}

void tell_lockless(const char* path, const Stock& stock, int rc) noexcept {
  // Images (squashfs and others) have no free blocks, but may not report that they are read-only.
  const char* const why =
      rc == ENOSPC ? "No space left on device, as on a full disk or a read-only image" : describe(stock, rc);
  log_line(lockless_level(),
           "%s: cannot be locked (%s): reading without locks; writers may change pages while they are being "
           "read",
           path, why);
}

std::string absolute(const char* path) {
  char cwd[PATH_MAX];
  if (path[0] == '/' || ::getcwd(cwd, sizeof cwd) == nullptr) return path;
  return std::string(cwd) + '/' + path;
}

/// Returns whether `file` is the one that the parent opened.
bool is_inherited(const EnvHandle& env, const struct stat& file) noexcept {
  const FileIdentity parents = env.engine->file().origin().id;
  return file.st_dev == parents.dev && file.st_ino == parents.ino;
}

/// Opens a forked child's companion on the file that its parent opened.  Returns nullptr on error; `rc` has
/// the code.
MDB_env* reopen(EnvHandle& env, int& rc) {
  const std::string file = data_file(env.setup.path.c_str(), env.setup.open_flags);
  struct stat at;
  if (::stat(file.c_str(), &at) != 0) {
    rc = errno;
    return nullptr;
  }
  rc = ESTALE;
  if (!is_inherited(env, at)) return nullptr;
  Proof proof;
  if (const Status st = prove_openable(file.c_str(), *env.stock, env.proof, proof); !st.ok()) {
    rc = st.raw();
    return nullptr;
  }
  env.local = proof.local;
  bool lockless = env.lockless;
  MDB_env* made = make_open(env, env.setup.path.c_str(), env.flags | (lockless ? MDB_NOLOCK : 0u), rc);
  if (made == nullptr && !lockless && !config().strict && is_about_locks(rc)) {
    const int first = rc;
    made = make_open(env, env.setup.path.c_str(), env.flags | MDB_NOLOCK, rc);
    if (made != nullptr) tell_lockless(env.stats.path.c_str(), *env.stock, first);
    lockless = made != nullptr;
  }
  if (made == nullptr) return nullptr;
  mdb_filehandle_t fd = -1;
  if (env.stock->env_get_fd(made, &fd) != 0 || ::fstat(fd, &at) != 0 ||
      !is_inherited(env, at)) {  // replaced meanwhile
    env.stock->env_close(made);
    rc = ESTALE;
    return nullptr;
  }
  close_on_exec(*env.stock, made);
  env.lockless = lockless;  // the store to env.real publishes it
  return made;
}

/// Opens env.real in a forked child.  Returns 0 on success.
int guarded_reopen(EnvHandle& env) noexcept {
  int rc = ENOMEM;
  MDB_env* made = nullptr;
  try {
    made = reopen(env, rc);
  } catch (...) {  // out of memory
  }
  if (made != nullptr) {
    env.real.store(made, std::memory_order_release);
    return 0;
  }
  if (rc == ESTALE)
    log_line(LogLevel::warn,
             "%s: the file has been replaced: this forked process reads the file that its parent opened, "
             "without locks",
             env.stats.path.c_str());
  else
    log_line(LogLevel::warn, "%s: cannot be opened again in this forked process (%s): reading without locks",
             env.stats.path.c_str(), describe(*env.stock, rc));
  return rc == kLocksHang ? ETIMEDOUT : rc;
}

}  // namespace

void note_open(EnvHandle& env, const char* path, unsigned flags, mdb_mode_t mode) {
  unsigned before = 0;
  (void)env.stock->env_get_flags(env.passed(), &before);
  env.setup.open_flags = flags | before;
  env.setup.mode = mode;
  env.setup.path = absolute(path);
}

int open_companion(EnvHandle& env, const char* path, unsigned flags, mdb_mode_t mode) {
  const Stock& stock = *env.stock;
  MDB_env* real = env.real.load(std::memory_order_relaxed);
  const bool read_only = (flags & MDB_RDONLY) != 0 && env.engine == nullptr && !env.opened;
  if (!read_only || env.setup.own_pages) {  // make_real() cannot repeat these settings
    const int rc = open_as_stock(stock, real, path, flags, mode);
    if (rc == 0) env.opened = true;
    return rc;
  }
  note_open(env, path, flags, mode);
  const bool no_locks = (env.setup.open_flags & MDB_NOLOCK) != 0;
  const bool no_room = !config().strict && !no_locks && !lock_file_has_room(path, flags);
  int rc = ENOSPC;
  if (config().strict)
    rc = open_as_stock(stock, real, path, flags, mode);
  else if (!no_room)
    rc = open_bounded(stock, real, path, flags, mode, env.local);
  const bool short_of_files = (rc == EMFILE || rc == ENFILE) && close_proofs(env);
  if (short_of_files || (rc == ENOMEM && window::Window::shrink_all())) {  // because of our files or windows
    if (MDB_env* const made = make_open(env, path, env.setup.open_flags, rc); made != nullptr) {
      stock.env_close(real);
      real = made;
      env.real.store(made, std::memory_order_relaxed);
    }
  }
  if (rc == 0) {
    env.opened = true;
    env.lockless = !no_locks && has_no_reader_table(stock, real);
    return 0;
  }
  const bool again = std::exchange(env.tried, true);  // stock answers EINVAL to another open
  if (config().strict || no_locks || !is_about_locks(rc) || (again && rc == EINVAL)) return rc;

  int second = 0;
  MDB_env* const made = make_open(env, path, env.setup.open_flags | MDB_NOLOCK, second);
  if (made == nullptr) {
    if (rc != kLocksHang) return no_room ? second : rc;
    int ignored = 0;  // the hanging thread owns the first one: the program gets another one to close
    env.real.store(make_real(env, ignored), std::memory_order_relaxed);
    return second;
  }
  if (rc != kLocksHang) stock.env_close(real);
  env.real.store(made, std::memory_order_relaxed);
  env.lockless = env.opened = true;
  tell_lockless(path, stock, rc);
  return 0;
}

MDB_env* companion(EnvHandle& env, int& error) noexcept {
  if (MDB_env* const real = env.real.load(std::memory_order_acquire); real != nullptr) return real;
  const int saved = errno;
  const Uncancelled wait;
  const AsyncSignalsBlocked fork_safe;
  Reopening state = Reopening::none;
  if (env.reopening.compare_exchange_strong(state, Reopening::now, std::memory_order_acq_rel)) {
    error = guarded_reopen(env);
    if (error != 0) env.reopen_error = error;
    env.reopening.store(Reopening::done, std::memory_order_release);
    env.reopening.notify_all();
  } else {
    const AsyncSignalsAllowed program;
    env.reopening.wait(Reopening::now, std::memory_order_acquire);
    error = env.reopen_error;
  }
  errno = saved;
  return env.real.load(std::memory_order_acquire);
}

void close_on_exec(const Stock& stock, MDB_env* real) noexcept {
  mdb_filehandle_t fd = -1;
  if (stock.env_get_fd(real, &fd) == 0 && fd >= 0) (void)::fcntl(fd, F_SETFD, FD_CLOEXEC);
}

void forget_companions() noexcept {
  for_each_served([](EnvHandle& env) {
    if (!env.alone) {
      env.real.store(nullptr, std::memory_order_relaxed);
      env.reopening.store(Reopening::none, std::memory_order_relaxed);
      env.reopen_error = 0;
    }
    env.forget_companions();
  });
}

bool may_read_without_slot(const EnvHandle& env, int rc) noexcept {
  const bool alone = env.real.load(std::memory_order_relaxed) == nullptr;
  // EAGAIN: a process with the same PID, in another PID namespace, holds the lock of that number.
  return !config().strict && (alone || rc == MDB_READERS_FULL || rc == EAGAIN || is_about_locks(rc));
}

void tell_without_slot(const EnvHandle& env, int rc) noexcept {
  if (env.real.load(std::memory_order_relaxed) == nullptr) return;  // logged when it could not be opened
  log_line(lockless_level(),
           "%s: no reader slot (%s): reading without one; writers may change pages while they are being read",
           env.stats.path.c_str(), describe(*env.stock, rc));
}

namespace {

/// Returns whether a reader holds transaction `txnid` or an older one, and has held it since it was the
/// newest.  Then no page of `txnid` was overwritten.  A parent's slot protects its forked children in this
/// way.
bool slot_holds(const Stock& stock, MDB_env* real, std::uint64_t txnid) noexcept {
  struct Oldest {
    std::uint64_t id = ~std::uint64_t{0};
  } oldest;
  (void)stock.reader_list(
      real,
      [](const char* text,
         void* out) {  // a heading, then lines of pid, thread and txnid; a dash for no txnid
        std::uint64_t id;
        if (std::sscanf(text, "%*d %*x %" SCNu64, &id) == 1) {
          auto& least = static_cast<Oldest*>(out)->id;
          least = std::min(least, id);
        }
        return 0;
      },
      &oldest);
  return oldest.id <= txnid;
}

}  // namespace

void look_back(ReadTxn& t) noexcept {
  t.by_metas = t.unprotected = false;
  EnvHandle& e = *t.env;
  if (t.used() == t.used_before) return;  // nothing was read
  tree::MetaCopies metas;
  if (e.engine->window() == nullptr || e.overtaken.load() || !e.engine->read_metas(metas).ok() ||
      !tree::overtaken(metas.records(), t.txn.id()))
    return;
  int rc = 0;
  MDB_env* const real = companion(e, rc);
  if (real != nullptr && !e.lockless && slot_holds(*e.stock, real, t.txn.id())) return;
  if (e.overtaken.exchange(true)) return;
  std::uint64_t now = 0;
  (void)tree::MetaSource(metas.records()).renew(now);
  log_line(LogLevel::warn,
           "%s: changed by a writer while it was being read without locks: transaction %" PRIu64
           " was read, but the newest is %" PRIu64 "; the data read may be inconsistent",
           e.stats.path.c_str(), t.txn.id(), now);
}

}  // namespace lmdbio::compat
