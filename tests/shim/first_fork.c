// Forks while another thread makes the very first use of the library, whatever it is about to set up then.
//
//   first_fork DIR N     N processes, of which each forks once, a little later each time
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/procs/known.h"

static const struct Known kKnown = {600, 3000, 0};
enum { kHangs = 20 /* seconds */, kStepNs = 20000, kSteps = 100 };

static atomic_int begins = 0;

static int walk(MDB_env* env) {
  MDB_txn* txn;
  MDB_dbi dbi;
  MDB_cursor* cursor;
  MDB_val key, data;
  MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
  MUST(mdb_cursor_open(txn, dbi, &cursor));
  unsigned n = 0;
  while (mdb_cursor_get(cursor, &key, &data, n == 0 ? MDB_FIRST : MDB_NEXT) == 0 &&
         right_record(&kKnown, n, &key, &data))
    ++n;
  mdb_cursor_close(cursor);
  mdb_txn_abort(txn);
  return n == kKnown.records;
}

static void* first_walk(void* env) {
  atomic_store(&begins, 1);
  return walk(env) ? env : NULL;
}

static MDB_env* open_env(const char* dir) {
  MDB_env* env;
  MUST(mdb_env_create(&env));
  MUST(mdb_env_set_mapsize(env, 64u << 20));
  MUST(mdb_env_open(env, dir, MDB_RDONLY | MDB_NOTLS, 0644));
  return env;
}

// -1: it hangs, and was killed.  No alarm in it: it may have signals blocked.
static int status_of(pid_t child) {
  CHECK(child > 0);
  for (int tries = 0; tries < kHangs * 1000; ++tries) {
    int status;
    const pid_t ended = waitpid(child, &status, WNOHANG);
    CHECK(ended >= 0);
    if (ended == child) return status;
    const struct timespec millisecond = {0, 1000000};
    nanosleep(&millisecond, NULL);
  }
  CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
  return -1;
}

static int race(const char* dir, int n) {
  MDB_env* const env = open_env(dir);
  pthread_t thread;
  void* right;
  CHECK(pthread_create(&thread, NULL, first_walk, env) == 0);
  while (!atomic_load(&begins)) sched_yield();
  const struct timespec later = {0, n % kSteps * kStepNs};
  nanosleep(&later, NULL);
  const pid_t child = fork();
  if (child == 0) _exit(walk(env) ? 0 : 1);
  const int status = status_of(child);
  CHECK(pthread_join(thread, &right) == 0);
  return status == 0 && right != NULL ? 0 : 1;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int most = atoi(argv[2]);
  if (fork() == 0) {  // this process is to make no use of the library
    make_known(argv[1], &kKnown);
    _exit(0);
  }
  CHECK(wait(NULL) > 0);
  int good = 0;
  for (int i = 0; i < most; ++i) {
    const pid_t child = fork();
    if (child == 0) _exit(race(argv[1], i));
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);  // it waits for what may hang
    good += status == 0;
  }
  say("processes of which parent and child read right: %d of %d", good, most);
  return 0;
}
