// A process that forks with a read-only environment, a transaction and a cursor open.  lmdb.h forbids it and
// data loaders do it.  Says of each step whether child and parent read what they should; how the child ends
// is the caller's choice.  Every wait is bounded by an alarm: a deadlock ends the program.
//   forking DIR SCENARIO     DIR exists and is empty
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "records.h"

// Waits for the child and says how it ended.
static void reap(pid_t child) {
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  if (WIFSIGNALED(status))
    say("child: signal %d", WTERMSIG(status));
  else
    say("child: exit %d", WEXITSTATUS(status));
}

static pid_t fork_flushed(void) {
  fflush(stdout);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) alarm(60);
  return child;
}

// The child goes on with what it inherited and ends at once; the parent notices nothing.
static void inherit(const char* dir, unsigned flags, int leave_by_exit) {
  struct Reader r = open_reader(dir, flags);
  say("parent before: %d", walk_on(r.cursor, 0, 1000));
  const pid_t child = fork_flushed();
  if (child == 0) {
    say("child walks on: %d", walk_on(r.cursor, 1000, 1000));
    say("child gets: %d", get_some(r.txn, r.dbi));
    MDB_cursor* own = NULL;
    say("child opens a cursor: %d", mdb_cursor_open(r.txn, r.dbi, &own));
    say("child walks from the start: %d", own && walk_on(own, 0, kRecords));
    mdb_cursor_close(own);
    fflush(stdout);
    if (leave_by_exit) exit(0);
    _exit(0);
  }
  reap(child);
  say("parent walks on: %d", walk_on(r.cursor, 1000, kRecords - 1000));
  say("parent gets: %d", get_some(r.txn, r.dbi));
  close_reader(&r);
}

// The child opens the path anew, as careful programs do.
static void reopen(const char* dir, unsigned flags) {
  struct Reader r = open_reader(dir, flags);
  say("parent before: %d", walk_on(r.cursor, 0, 1000));
  const pid_t child = fork_flushed();
  if (child == 0) {
    struct Reader fresh = open_reader(dir, flags);
    say("child reads anew: %d", walk_on(fresh.cursor, 0, kRecords) && get_some(fresh.txn, fresh.dbi));
    say("child walks on: %d", walk_on(r.cursor, 1000, 500));
    close_reader(&fresh);
    fflush(stdout);
    _exit(0);
  }
  reap(child);
  say("parent walks on: %d", walk_on(r.cursor, 1000, kRecords - 1000));
  close_reader(&r);
}

// The environment is opened before the fork, transactions begin after it: how data loaders do it.  Stock's
// children cannot begin at the same time: they all want the lock of the parent's pid (unless the parent has
// begun one before), and share the reader slot of the parent's thread (unless MDB_NOTLS).
static void begin_after(const char* dir, unsigned flags, int begun_before) {
  MDB_env* env;
  MUST(mdb_env_create(&env));
  MUST(mdb_env_open(env, dir, MDB_RDONLY | flags, 0644));
  if (begun_before) {
    MDB_txn* txn;
    MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
    mdb_txn_abort(txn);
  }
  const int together = begun_before && (flags & MDB_NOTLS);
  pid_t child[3];
  for (int c = 0; c < 3; ++c) {
    child[c] = fork_flushed();
    if (child[c] == 0) {
      MDB_txn* txn;
      MDB_dbi dbi;
      MDB_cursor* cursor;
      int good = 0;
      if (mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) == 0 && mdb_dbi_open(txn, NULL, 0, &dbi) == 0 &&
          mdb_cursor_open(txn, dbi, &cursor) == 0)
        good = walk_on(cursor, 0, kRecords) && get_some(txn, dbi);
      if (good) mdb_cursor_close(cursor), mdb_txn_abort(txn);
      _exit(good ? 0 : 1);
    }
    if (!together) reap(child[c]);
  }
  for (int c = 0; c < 3 && together; ++c) reap(child[c]);
  MDB_txn* txn;
  MDB_dbi dbi;
  MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
  say("parent gets: %d", get_some(txn, dbi));
  mdb_txn_abort(txn);
  mdb_env_close(env);
}

// The child ends what it inherited.  What stock then does to the parent's reader slot is its own affair;
// neither process may crash or hang, and both have read right before.
static void end_in_child(const char* dir, unsigned flags) {
  struct Reader r = open_reader(dir, flags);
  const pid_t child = fork_flushed();
  if (child == 0) {
    say("child walks: %d", walk_on(r.cursor, 0, 1000));
    close_reader(&r);
    fflush(stdout);
    _exit(0);
  }
  reap(child);
  say("parent walks: %d", walk_on(r.cursor, 0, kRecords));
  close_reader(&r);
}

static atomic_int stop_reading, reads;

static void* read_always(void* argument) {
  MDB_env* env = argument;
  MDB_dbi dbi;
  while (!atomic_load(&stop_reading)) {
    MDB_txn* txn;
    MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
    MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
    CHECK(get_some(txn, dbi));
    mdb_txn_abort(txn);
    atomic_fetch_add(&reads, 1);
  }
  return NULL;
}

// Forks while other threads begin, read and end: locks that they hold must not be waited for in the child.
static void busy(const char* dir, unsigned flags) {
  struct Reader r = open_reader(dir, flags);
  pthread_t thread[3];
  for (int t = 0; t < 3; ++t) CHECK(pthread_create(&thread[t], NULL, read_always, r.env) == 0);
  int good = 0;
  for (int i = 0; i < 50; ++i) {
    const int seen = atomic_load(&reads);
    while (atomic_load(&reads) == seen) sched_yield();
    const pid_t child = fork_flushed();
    if (child == 0) _exit(get_some(r.txn, r.dbi) ? 0 : 1);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    good += status == 0;
  }
  atomic_store(&stop_reading, 1);
  for (int t = 0; t < 3; ++t) pthread_join(thread[t], NULL);
  say("children that read right: %d of 50", good);
  close_reader(&r);
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  alarm(100);
  make(argv[1]);
  const char* what = argv[2];
  for (unsigned flags = 0; flags <= MDB_NOTLS; flags += MDB_NOTLS) {
    say("== %s, flags %x", what, flags);
    if (strcmp(what, "inherit") == 0)
      inherit(argv[1], flags, 0);
    else if (strcmp(what, "inherit-exit") == 0)
      inherit(argv[1], flags, 1);
    else if (strcmp(what, "reopen") == 0)
      reopen(argv[1], flags);
    else if (strcmp(what, "begin-after") == 0)
      begin_after(argv[1], flags, 0);
    else if (strcmp(what, "begin-after-first") == 0)
      begin_after(argv[1], flags, 1);
    else if (strcmp(what, "end-in-child") == 0)
      end_in_child(argv[1], flags);
    else if (strcmp(what, "busy") == 0) {
      atomic_store(&stop_reading, 0);
      busy(argv[1], flags);
    } else
      return 2;
  }
  return 0;
}
