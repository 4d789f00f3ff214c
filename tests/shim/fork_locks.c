// Forks while another thread has just taken a lock of the library's, for each place where it takes one: the
// child makes the same calls, of the environment that it shares with its parent and of one of its own, and
// closes the reader that the other thread is inside of.  It must not want a lock that nobody will release.
//
// The other thread stops as soon as it has the lock, and goes on when the fork is done or waits for it.
//
//   fork_locks DIR
#define LMDBIO_WEAK
#include <dlfcn.h>
#include <errno.h>
#include <lmdbio/lmdbio.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/procs/known.h"

static const struct Known kKnown = {120, 20000, 0};
enum {
  kSites = 256,
  kTurns = 8 /* stops at each place, at most */,
  kBatch = 16,
  kLost = 3,
  kHangs = 20 /* seconds */
};

// -- locks

static int (*real_lock)(pthread_mutex_t*);
static char *library_begin, *library_end;

static _Thread_local int worker, forks;
static atomic_uint places_seen;
static void* _Atomic places[kSites];  // return addresses, in the order in which the worker came to them
static atomic_uint counts[kSites];
static atomic_uint stop_place = kSites, stop_turn;  // where the worker is to stop
static atomic_int stopped, go_on;
static int is_child;

static unsigned place_of(void* from) {
  for (unsigned i = 0; i < kSites; ++i) {
    void* is = atomic_load(&places[i]);
    if (is == NULL && atomic_compare_exchange_strong(&places[i], &is, from)) {
      atomic_store(&places_seen, i + 1);
      return i;
    }
    if (is == from) return i;
  }
  abort();
}

// A child has its own threads, which release what they take.
static int lock_in_child(pthread_mutex_t* m, void* from) {
  const struct timespec millisecond = {0, 1000000};
  for (int i = 0; i < kHangs * 1000; ++i) {
    const int rc = pthread_mutex_trylock(m);
    if (rc != EBUSY) return rc;
    nanosleep(&millisecond, NULL);
  }
  fprintf(stderr, "lost: the lock taken at +%#lx\n", (unsigned long)((char*)from - library_begin));
  _exit(kLost);
}

// In front of the C library's, for the library under test as well.
int pthread_mutex_lock(pthread_mutex_t* m) {
  void* const from = __builtin_return_address(0);
  if (real_lock == NULL) real_lock = (int (*)(pthread_mutex_t*))dlsym(RTLD_NEXT, "pthread_mutex_lock");
  const int its = (char*)from >= library_begin && (char*)from < library_end;
  if (forks && pthread_mutex_trylock(m) == 0) return 0;
  if (forks) atomic_store(&go_on, 1);  // the fork waits for this one
  if (is_child && its) return lock_in_child(m, from);
  const int rc = real_lock(m);
  if (rc != 0 || !worker || !its || is_child) return rc;
  const unsigned place = place_of(from), turn = atomic_fetch_add(&counts[place], 1);
  if (place != atomic_load(&stop_place) || turn != atomic_load(&stop_turn)) return rc;
  atomic_store(&stopped, 1);
  while (!atomic_load(&go_on)) sched_yield();
  return rc;
}

// Where the library is: not the program, not the real LMDB.
static void find_library(void) {
  Dl_info info;
  char line[4096];
  CHECK(lmdbio_reader_open && dladdr((void*)(size_t)lmdbio_reader_open, &info) != 0);
  FILE* const maps = fopen("/proc/self/maps", "re");
  CHECK(maps != NULL);
  while (fgets(line, sizeof line, maps) != NULL) {
    void *begin, *end;
    char flags[8];
    if (sscanf(line, "%p-%p %7s", &begin, &end, flags) != 3 || strstr(line, "liblmdbio") == NULL) continue;
    if (library_begin == NULL) library_begin = begin;
    library_end = end;
  }
  fclose(maps);
  CHECK(library_begin != NULL && (char*)info.dli_fbase == library_begin);
}

// -- what threads and children do

static const char* dir;
static MDB_env* shared_env;
static lmdbio_reader* shared_reader;
static lmdbio_stream* shared_stream;

static MDB_env* open_env(void) {
  MDB_env* env;
  MUST(mdb_env_create(&env));
  MUST(mdb_env_set_mapsize(env, 64u << 20));
  MUST(mdb_env_open(env, dir, MDB_RDONLY | MDB_NOTLS, 0644));
  return env;
}

static void read_with(MDB_env* env) {
  MDB_txn* txn;
  MDB_dbi dbi;
  MDB_cursor* cursor;
  MDB_val key, data, keys[kBatch];
  unsigned char names[kBatch][8];
  MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
  for (size_t from = 0; from < kKnown.records / 2; from += kBatch) {
    for (size_t i = 0; i < kBatch; ++i) keys[i] = known_key(from + i, &names[i]);
    MUST(lmdbio_prefetch(txn, dbi, keys, kBatch));
    for (size_t i = 0; i < kBatch; ++i) {
      MUST(mdb_get(txn, dbi, &keys[i], &data));
      CHECK(right_record(&kKnown, from + i, &keys[i], &data));
    }
  }
  MUST(mdb_cursor_open(txn, dbi, &cursor));
  unsigned n = 0;
  while (mdb_cursor_get(cursor, &key, &data, n == 0 ? MDB_FIRST : MDB_NEXT) == 0) {
    CHECK(right_record(&kKnown, n, &key, &data));
    ++n;
  }
  CHECK(n == kKnown.records);
  mdb_cursor_close(cursor);
  mdb_txn_abort(txn);
}

static void right_batch(const lmdbio_batch* batch) {
  for (size_t i = 0; i < batch->count; ++i)
    CHECK(right_record(&kKnown, batch->records[i].ordinal, &batch->records[i].key, &batch->records[i].value));
  lmdbio_batch_release(batch);
}

static lmdbio_stream* open_stream(lmdbio_reader* reader) {
  lmdbio_order order = {0};
  lmdbio_stream* stream;
  order.size = sizeof order;
  order.kind = LMDBIO_ORDER_SHUFFLE;
  order.batch = kBatch;
  MUST(lmdbio_stream_open(reader, &order, &stream));
  return stream;
}

static void read_batches(lmdbio_reader* reader, lmdbio_stream* stream) {
  const uint64_t some[] = {7, 0, kKnown.records - 1};
  unsigned char name[8];
  const MDB_val key = known_key(33, &name);
  const lmdbio_batch* batch;
  MUST(lmdbio_reader_read(reader, some, 3, &batch));
  right_batch(batch);
  MUST(lmdbio_reader_read_keys(reader, &key, 1, &batch));
  right_batch(batch);
  int rc;
  while ((rc = lmdbio_stream_next(stream, &batch)) == 0) right_batch(batch);
  CHECK(rc == MDB_NOTFOUND);
}

static void* work(void* unused) {
  worker = 1;
  read_with(shared_env);
  read_batches(shared_reader, shared_stream);
  worker = 0;
  return unused;
}

// A call of the parent's reader is refused; what may be closed is closed.
static void be_a_child(void) {
  const lmdbio_batch* batch;
  const uint64_t zero = 0;
  CHECK(lmdbio_stream_next(shared_stream, &batch) == EINVAL);
  CHECK(lmdbio_reader_read(shared_reader, &zero, 1, &batch) == EINVAL);
  lmdbio_stream_close(shared_stream);
  lmdbio_reader_close(shared_reader);
  read_with(shared_env);
  MDB_env* const own = open_env();
  read_with(own);
  lmdbio_reader* reader;
  MDB_txn* txn;
  MDB_dbi dbi;
  MUST(mdb_txn_begin(own, NULL, MDB_RDONLY, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
  MUST(lmdbio_reader_attach(txn, dbi, NULL, &reader));
  lmdbio_stream* const stream = open_stream(reader);
  read_batches(reader, stream);
  lmdbio_stream_close(stream);
  lmdbio_reader_close(reader);
  mdb_txn_abort(txn);
  mdb_env_close(own);
  mdb_env_close(shared_env);
}

// -1: it hangs, and was killed.  No alarm in it: it may have signals blocked.
static int status_of(pid_t child) {
  const struct timespec millisecond = {0, 1000000};
  CHECK(child > 0);
  for (int tries = 0; tries < 2 * kHangs * 1000; ++tries) {
    int status;
    const pid_t ended = waitpid(child, &status, WNOHANG);
    CHECK(ended >= 0);
    if (ended == child) return status;
    nanosleep(&millisecond, NULL);
  }
  CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
  return -1;
}

// One round of work, with a fork at the stop that is set.  False: the child went wrong.
static int round_of_work(int wants_fork, int* came_to_it) {
  pthread_t thread;
  MDB_txn* txn;
  MDB_dbi dbi;
  for (unsigned i = 0; i < kSites; ++i) atomic_store(&counts[i], 0);
  atomic_store(&stopped, 0);
  atomic_store(&go_on, 0);
  shared_env = open_env();
  MUST(mdb_txn_begin(shared_env, NULL, MDB_RDONLY, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
  MUST(lmdbio_reader_attach(txn, dbi, NULL, &shared_reader));
  shared_stream = open_stream(shared_reader);
  CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
  int status = 0;
  while (wants_fork && !atomic_load(&stopped) && pthread_tryjoin_np(thread, NULL) == EBUSY) sched_yield();
  *came_to_it = atomic_load(&stopped);
  if (*came_to_it) {
    forks = 1;
    const pid_t child = fork();
    forks = 0;
    if (child == 0) {
      is_child = 1;
      be_a_child();
      _exit(0);
    }
    atomic_store(&go_on, 1);
    status = status_of(child);
  }
  if (!wants_fork || *came_to_it) CHECK(pthread_join(thread, NULL) == 0);
  lmdbio_stream_close(shared_stream);
  lmdbio_reader_close(shared_reader);
  mdb_txn_abort(txn);
  mdb_env_close(shared_env);
  return status == 0;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  dir = argv[1];
  if (fork() == 0) {
    make_known(dir, &kKnown);
    _exit(0);
  }
  CHECK(wait(NULL) > 0);
  find_library();
  int came = 0;
  unsigned all = 0, good = 0;
  CHECK(round_of_work(0, &came));
  for (unsigned place = 0; place < atomic_load(&places_seen); ++place) {
    const unsigned times = atomic_load(&counts[place]);
    for (unsigned k = 0, turn = 0; k < kTurns && turn < (times == 0 ? 1 : times); ++k, turn = 2 * turn + 1) {
      atomic_store(&stop_place, place);
      atomic_store(&stop_turn, turn);
      const int right = round_of_work(1, &came);
      all += came != 0;
      good += came && right;
      if (!right) fprintf(stderr, "place %u of %u, turn %u\n", place, atomic_load(&places_seen), turn);
    }
  }
  CHECK(atomic_load(&places_seen) > 5);
  say("%s", all > 10 && good == all ? "all children read right" : "not all");
  fprintf(stderr, "%u of %u forks at %u places\n", good, all, atomic_load(&places_seen));
  return 0;
}
