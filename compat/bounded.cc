#include "compat/bounded.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <time.h>

#include <atomic>
#include <new>
#include <string>

#include "lmdbio/base/config.h"
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
  sem_t done{};
  std::atomic<unsigned> owners{2};

  Job(const Stock& s, MDB_env* e, const char* p, unsigned f, mdb_mode_t m)
      : stock(s), env(e), path(p), flags(f), mode(m) {
    ::sem_init(&done, 0, 0);
  }
  ~Job() { ::sem_destroy(&done); }
  void let_go() noexcept {
    if (owners.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
};

void* run(void* argument) {
  Job& job = *static_cast<Job*>(argument);
  (void)::pthread_setname_np(::pthread_self(), "lmdbio-open");
  job.rc = job.stock.env_open(job.env, job.path.c_str(), job.flags, job.mode);
  // Perhaps nobody waits any more: the environment stays as it is.  Closing it would drop this process's
  // locks on the same file, which another environment may hold by now.
  ::sem_post(&job.done);
  job.let_go();
  return nullptr;
}

bool start(Job& job) noexcept {
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) != 0) return false;
  (void)::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  sigset_t all, before;
  ::sigfillset(&all);
  (void)::pthread_sigmask(SIG_SETMASK, &all, &before);  // the program's handlers run on the program's threads
  pthread_t thread;
  const int rc = ::pthread_create(&thread, &attributes, run, &job);
  (void)::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  (void)::pthread_attr_destroy(&attributes);
  return rc == 0;
}

}  // namespace

int open_bounded(const Stock& stock, MDB_env* env, const char* path, unsigned flags,
                 mdb_mode_t mode) noexcept {
  const unsigned seconds = config().lock_seconds;
  if (seconds == 0 || (flags & MDB_NOLOCK) != 0 || is_local_file_system(path))
    return stock.env_open(env, path, flags, mode);
  Job* job = nullptr;
  try {
    job = new Job(stock, env, path, flags, mode);
  } catch (...) {
    return ENOMEM;
  }
  stay_loaded();
  if (!start(*job)) {  // no thread to be had: as stock
    delete job;
    return stock.env_open(env, path, flags, mode);
  }
  timespec until;
  ::clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += static_cast<time_t>(seconds);
  int waited;
  do waited = ::sem_clockwait(&job->done, CLOCK_MONOTONIC, &until);
  while (waited != 0 && errno == EINTR);
  const int rc = waited == 0 ? job->rc : kLocksHang;
  job->let_go();
  return rc;
}

}  // namespace lmdbio::compat
