#include "compat/bounded.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <string>

#include "lmdbio/base/config.h"
#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/io/file_system.h"
#include "lmdbio/io/private_table.h"

namespace lmdbio::compat {

namespace {

struct Job {
  const Stock& stock;
  MDB_env* env;
  std::string path;
  unsigned flags;
  mdb_mode_t mode;
  int rc = 0;
  OneShot done;
  std::atomic<unsigned> owners{2};

  Job(const Stock& s, MDB_env* e, const char* p, unsigned f, mdb_mode_t m)
      : stock(s), env(e), path(p), flags(f), mode(m) {}
  void let_go() noexcept {
    if (owners.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
};

void* run(void* argument) {
  Job& job = *static_cast<Job*>(argument);
  (void)::pthread_setname_np(::pthread_self(), "lmdbio-open");
  job.rc = job.stock.env_open(job.env, job.path.c_str(), job.flags, job.mode);
  // The caller may have stopped waiting; then the environment stays as it is.  Closing it would drop this
  // process's locks on the same file, which another environment may hold by now.
  job.done.set();
  job.let_go();
  return nullptr;
}

bool start(Job& job) noexcept {
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) != 0) return false;
  (void)::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  note_own_thread();
  sigset_t all, before;
  ::sigfillset(&all);
  (void)::pthread_sigmask(SIG_SETMASK, &all, &before);  // the program's handlers run on the program's threads
  pthread_t thread;
  const int rc = ::pthread_create(&thread, &attributes, run, &job);
  (void)::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  (void)::pthread_attr_destroy(&attributes);
  return rc == 0;
}

/// Waits for the thread, at most `seconds` if not 0.  The program's signal handlers run meanwhile.  Returns
/// false if the environment is not open yet, or if a handler has forked and this is the child, which has no
/// such thread.
bool wait_for(Job& job, unsigned seconds) noexcept {
  constexpr std::int64_t kSecond = 1'000'000'000, kPoll = kSecond / 4;
  const std::int64_t until = now_ns() + std::int64_t{seconds} * kSecond;
  const pid_t self = ::getpid();
  const AsyncSignalsAllowed program;
  while (!job.done.is_set()) {
    const std::int64_t now = now_ns();
    if (::getpid() != self || (seconds != 0 && now >= until)) return false;
    job.done.wait(seconds != 0 ? std::min(kPoll, until - now) : kPoll);
  }
  return true;
}

}  // namespace

int open_as_stock(const Stock& stock, MDB_env* env, const char* path, unsigned flags,
                  mdb_mode_t mode) noexcept {
  const AsyncSignalsAllowed program;
  return stock.env_open(env, path, flags, mode);
}

int open_bounded(const Stock& stock, MDB_env* env, const char* path, unsigned flags, mdb_mode_t mode,
                 bool local) noexcept {
  if (local && (flags & MDB_NOLOCK) != 0) return stock.env_open(env, path, flags, mode);
  // A local data file is not enough: data.mdb may be a symbolic link, and the lock file may lie elsewhere.
  unsigned seconds = (flags & MDB_NOLOCK) != 0 ? 0 : config().lock_seconds;
  if (seconds != 0) {
    const AsyncSignalsAllowed program;  // a server may not answer
    if (is_local_file_system(path)) seconds = 0;
  }
  // With several threads, fork() takes malloc's locks.  A handler that forks in this thread while LMDB holds
  // such a lock would never end.  Another thread therefore calls LMDB.
  if (seconds == 0 && !has_own_threads()) return open_as_stock(stock, env, path, flags, mode);
  Job* job = nullptr;
  try {
    job = new Job(stock, env, path, flags, mode);
  } catch (...) {
    return ENOMEM;
  }
  stay_loaded();
  if (!start(*job)) {  // no thread can be started: as stock
    delete job;
    return open_as_stock(stock, env, path, flags, mode);
  }
  const int rc = wait_for(*job, seconds) ? job->rc : kLocksHang;
  job->let_go();
  return rc;
}

}  // namespace lmdbio::compat
