/* A program whose signal handler forks, whatever the handler interrupts: sigfork PATH SCENARIO FORKS.
 *
 * make             writes the database
 * walk, get, prefetch  walks, lookups and lookups after lmdbio_prefetch go on until the handler has run FORKS
 *                  times; every eighth child returns from the handler and goes on for some calls
 * open, begin      environments and transactions are opened and closed beside a walk
 * reader           a stream of lmdbio.h; so does reopen, which opens and closes the reader as well
 *
 * A process of its own ends the program with a message where nothing goes on.  One thread, as stock lets
 * handlers fork at any time only there: fork() in a process of several waits for malloc's locks.
 *
 * With AddressSanitizer no child goes on: fork() does not wait for the locks of its allocator, which LMDBIO's
 * threads may have then, and the child would wait for them for ever. */
#define LMDBIO_WEAK
#include <errno.h>
#include <fcntl.h>
#include <lmdbio/lmdbio.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kRecords = 1200, kBytes = 40000, kReturns = 8, kCallsInChild = 20, kAhead = 40 };

static struct Shared { volatile unsigned forks, calls; } * shared;
static volatile sig_atomic_t in_child, calls_in_child, children_return;
static unsigned wanted;
static const char* path;

static void fail(int line, const char* what) {
  char text[200];
  const int n = snprintf(text, sizeof text, "line %d%s: %s\n", line, in_child ? " (child)" : "", what);
  (void)!write(2, text, (size_t)n);
  _exit(1);
}
#define CHECK(ok)                   \
  do {                              \
    if (!(ok)) fail(__LINE__, #ok); \
  } while (0)

/* -- the handler */

static void arm(void) {
  static unsigned seed = 1;
  seed = seed * 1664525u + 1013904223u;
  const struct itimerval once = {{0, 0}, {0, 100 + (int)(seed >> 16) % 2000}};
  CHECK(setitimer(ITIMER_REAL, &once, NULL) == 0);
}

static void on_alarm(int signal) {
  (void)signal;
  const int saved = errno;
  const int returns = children_return && shared->forks % kReturns == 0;
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0 && !returns) _exit(0);
  if (pid == 0) {
    in_child = 1;
    errno = saved;
    return;
  }
  int status = -1;
  pid_t ended;
  do ended = waitpid(pid, &status, 0);
  while (ended < 0 && errno == EINTR);
  CHECK(ended == pid && status == 0);
  ++shared->forks;
  errno = saved;
  arm();
}

/* After each call.  False: it is enough. */
static int on(void) {
  if (in_child && ++calls_in_child > kCallsInChild) _exit(0);
  if (!in_child) ++shared->calls;
  return in_child || shared->forks < wanted;
}

static void watch(pid_t group) {
  const struct timespec look = {60, 0};
  CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
  for (;;) {
    const unsigned forks = shared->forks, calls = shared->calls;
    nanosleep(&look, NULL);
    if (forks != shared->forks || calls != shared->calls) continue;
    char text[100];
    const int n = snprintf(text, sizeof text, "hang after %u forks, %u calls\n", forks, calls);
    (void)!write(2, text, (size_t)n);
    kill(-group, SIGKILL);
  }
}

/* -- what it interrupts */

static MDB_val key_of(unsigned i, char* text) {
  const MDB_val v = {6, text};
  for (int at = 6; at-- > 0; i /= 10) text[at] = (char)('0' + i % 10);
  return v;
}
static int right(unsigned i, const MDB_val* v) {
  const unsigned char* const bytes = v->mv_data;
  return v->mv_size == kBytes && bytes[0] == i % 251 && bytes[kBytes / 2] == i % 251 &&
         bytes[kBytes - 1] == i % 251;
}

static MDB_env* open_env(unsigned flags) {
  MDB_env* env;
  CHECK(mdb_env_create(&env) == 0 && mdb_env_set_mapsize(env, (size_t)256 << 20) == 0);
  CHECK(mdb_env_open(env, path, MDB_NOSUBDIR | flags, 0644) == 0);
  return env;
}
static MDB_txn* begin(MDB_env* env, unsigned flags, MDB_dbi* dbi) {
  MDB_txn* txn;
  CHECK(mdb_txn_begin(env, NULL, flags, &txn) == 0 && mdb_dbi_open(txn, NULL, 0, dbi) == 0);
  return txn;
}

static void make(void) {
  static unsigned char value[kBytes];
  MDB_dbi dbi;
  MDB_env* const env = open_env(0);
  MDB_txn* const txn = begin(env, 0, &dbi);
  for (unsigned i = 0; i < kRecords; ++i) {
    char text[8];
    MDB_val k = key_of(i, text), v = {kBytes, value};
    memset(value, (int)(i % 251), sizeof value);
    CHECK(mdb_put(txn, dbi, &k, &v, 0) == 0);
  }
  CHECK(mdb_txn_commit(txn) == 0);
  mdb_env_close(env);
}

static void forget_pages(void) {
  const int fd = open(path, O_RDONLY);
  CHECK(fd >= 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0 && close(fd) == 0);
}

/* A walk over all, or some steps of one; false: it is enough. */
static int walk(MDB_txn* txn, MDB_dbi dbi, unsigned from, unsigned steps) {
  MDB_cursor* cursor;
  char text[8];
  MDB_val k = key_of(from, text), v;
  CHECK(mdb_cursor_open(txn, dbi, &cursor) == 0);
  CHECK(mdb_cursor_get(cursor, &k, &v, MDB_SET) == 0);
  int more = 1;
  for (unsigned i = from; more; ++i) {
    CHECK(right(i, &v));
    more = on();
    if (i + 1 == kRecords || i + 1 == from + steps) break;
    if (more) CHECK(mdb_cursor_get(cursor, &k, &v, MDB_NEXT) == 0);
  }
  mdb_cursor_close(cursor);
  return more;
}

static void walks(MDB_env* env) {
  MDB_dbi dbi;
  MDB_txn* const txn = begin(env, MDB_RDONLY, &dbi);
  while (walk(txn, dbi, 0, kRecords)) {
  }
  mdb_txn_abort(txn);
}

static void lookups(MDB_env* env, int prefetches) {
  unsigned seed = 7;
  for (int more = 1; more;) {
    MDB_dbi dbi;
    forget_pages();
    MDB_txn* const txn = begin(env, MDB_RDONLY, &dbi);
    for (unsigned i = 0; i < kRecords && more; ++i) {
      static char texts[kAhead][8];
      static MDB_val keys[kAhead];
      if (i % kAhead == 0)
        for (unsigned a = 0; a < kAhead; ++a) keys[a] = key_of((seed += 7919) % kRecords, texts[a]);
      if (i % kAhead == 0 && prefetches && lmdbio_prefetch != NULL)
        CHECK(lmdbio_prefetch(txn, dbi, keys, kAhead) == 0);
      MDB_val v;
      CHECK(mdb_get(txn, dbi, &keys[i % kAhead], &v) == 0);
      CHECK(right((unsigned)atoi(texts[i % kAhead]), &v));
      more = on();
    }
    mdb_txn_abort(txn);
  }
}

/* Beside a walk, so that there is a thread that reads. */
static void opens(MDB_env* env, int environments) {
  MDB_dbi dbi;
  MDB_txn* const txn = begin(env, MDB_RDONLY, &dbi);
  for (unsigned from = 0; walk(txn, dbi, from, 5); from = (from + 5) % kRecords) {
    MDB_env* const other = environments ? open_env(MDB_RDONLY | MDB_NOTLS) : env;
    for (int round = 0; round < (environments ? 2 : 200); ++round) {
      MDB_dbi its;
      MDB_txn* const t = begin(other, MDB_RDONLY, &its);
      if (environments) (void)walk(t, its, from, 3);
      mdb_txn_abort(t);
    }
    if (environments) mdb_env_close(other);
  }
  mdb_txn_abort(txn);
}

static int give_batches(lmdbio_reader* reader) {
  lmdbio_order order = {.size = sizeof order, .kind = LMDBIO_ORDER_SHUFFLE, .batch = 4, .seed = 1};
  lmdbio_stream* stream;
  const lmdbio_batch* batch;
  CHECK(lmdbio_stream_open(reader, &order, &stream) == 0);
  int more = 1, rc = 0;
  while (more && (rc = lmdbio_stream_next(stream, &batch)) == 0) {
    for (size_t i = 0; i < batch->count; ++i)
      CHECK(right((unsigned)batch->records[i].ordinal, &batch->records[i].value));
    lmdbio_batch_release(batch);
    more = on();
  }
  CHECK(rc == 0 || rc == MDB_NOTFOUND);
  lmdbio_stream_close(stream);
  return more;
}

static void readers(int again) {
  lmdbio_reader_options options = {
      .size = sizeof options, .flags = MDB_NOSUBDIR, .memory = 16u << 20, .no_index_file = 1};
  lmdbio_reader* reader = NULL;
  for (int more = 1; more;) {
    if (reader == NULL) CHECK(lmdbio_reader_open(path, &options, &reader) == 0);
    more = give_batches(reader);
    if (!more || again) lmdbio_reader_close(reader);
    if (again) reader = NULL;
  }
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  path = argv[1];
  const char* const what = argv[2];
  wanted = (unsigned)atoi(argv[3]);
  if (strcmp(what, "make") == 0) {
    make();
    return 0;
  }
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED && setpgid(0, 0) == 0);
  const pid_t watcher = fork();
  CHECK(watcher >= 0);
  if (watcher == 0) watch(getpgrp());

#if !defined(__SANITIZE_ADDRESS__)
  children_return = strcmp(what, "walk") == 0 || strcmp(what, "get") == 0 || strcmp(what, "prefetch") == 0;
#endif
  const int of_reader = strcmp(what, "reader") == 0 || strcmp(what, "reopen") == 0;
  MDB_env* const env = of_reader ? NULL : open_env(MDB_RDONLY | MDB_NOTLS);
  const struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
  CHECK(sigaction(SIGALRM, &action, NULL) == 0);
  static sigset_t before, after; /* the kernel writes a part of them */
  CHECK(sigprocmask(SIG_SETMASK, NULL, &before) == 0);
  arm();
  if (strcmp(what, "walk") == 0)
    walks(env);
  else if (of_reader)
    readers(strcmp(what, "reopen") == 0);
  else if (strcmp(what, "open") == 0 || strcmp(what, "begin") == 0)
    opens(env, strcmp(what, "open") == 0);
  else
    lookups(env, strcmp(what, "prefetch") == 0);
  CHECK(signal(SIGALRM, SIG_IGN) != SIG_ERR);
  CHECK(sigprocmask(SIG_SETMASK, NULL, &after) == 0 && memcmp(&before, &after, sizeof before) == 0);
  if (env != NULL) mdb_env_close(env);
  CHECK(kill(watcher, SIGKILL) == 0 && waitpid(watcher, NULL, 0) == watcher);
  printf("%s: enough forks\n", what);
  return 0;
}
