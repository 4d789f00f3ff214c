// A consumer that walks databases in every way that consumers have, command by command; every byte is
// checked.
//   cold COMMAND...     or "-": commands are lines of standard input.  Each prints one line:
//                       COMMAND = ANSWER
//   known RECORDS BYTES EVERY   what databases hold from now on (tests/procs/known.h)
//   versions                    and that a writer has been there (see commit)
//   make DIR, evict DIR
//   scatter DIR PARTS           all records again, in so many commits: neighbours come to lie far apart
//   open DIR [MAPSIZE_MIB]      read-only, MDB_NOTLS; the next slot: 0, 1, ..
//   same SLOT                   the next slot is of this one's environment
//   begin SLOT, end SLOT        transaction and cursor
//   close SLOT, cursor-close SLOT
//   resize SLOT MIB             mdb_env_set_mapsize
//   walk SLOT                   from first to last
//   part SLOT N, rest SLOT      N records from the first on, then the others
//   more SLOT N                 N records from where it is
//   back SLOT                   from last to first
//   range SLOT KEY              MDB_SET_RANGE, then to the last
//   twice SLOT                  to the end, and from the first again after MDB_NOTFOUND
//   pair SLOT                   by a second cursor half a database behind
//   stride SLOT K R [N]         uses N values (default: all there are in a turn), the R-th and then each
//                               K-th; from the first again after MDB_NOTFOUND, as Intel-Caffe's ranks do
//   stride-back SLOT K R        from the last on, one turn
//   keys SLOT                   from first to last, without values
//   use-at SLOT N LIST          N records from where it is; LIST: of the values in turn, u used, h their
//                               first 4 KiB alone, - not, over and over
//   turns, threads              all slots at once: one record each in turn; a thread each
//   gets SLOT N STEP            N lookups by mdb_get, each STEP records after the last one, around the end;
//                               the key after the last record now and then
//   sets SLOT N STEP            likewise by MDB_SET, SET_KEY and SET_RANGE in turn
//   hold SLOT N STEP            as gets, and remembers where the values are
//   held SLOT                   which of these are as they were given
//   forget SLOT                 no longer: how many they were
//   short SLOT THREADS N        THREADS threads, N transactions each, of one lookup each
//   fork SLOT N                 N children one after the other at once, each walks; the parent goes on
//   cancel SLOT                 by a thread that is being cancelled all the time
//   writer DIR, commit          a writable environment; a third of the records is rewritten
//   storm                       signals every 0.3 ms from now on
//   areas LEFT                  no more than LEFT further areas of memory can be mapped from now on
//   room MIB                    RLIMIT_AS: what is mapped and MIB more
//   files LEFT                  RLIMIT_NOFILE likewise
//   memlock                     RLIMIT_MEMLOCK 0
//   free                        what `areas` took is given back
//   tasks                       threads of this process
// A walk answers "right N", with "errors N" if calls gave EIO and were made again.
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "tests/procs/known.h"

enum { kMost = 64, kErrno = 12345, kParts = 3, kPatience = 1000, kMostHeld = 4096 };
#define LAST_KEY (~(uint64_t)0)

struct Slot {
  MDB_env* env;
  MDB_txn* txn;
  MDB_dbi dbi;
  MDB_cursor* cursor;
  uint64_t version;
  size_t at;  ///< records that were read since the first
};

static struct Known known;
static int versions;
static struct Slot slots[kMost];
static struct {
  const struct Slot* slot;
  uint64_t record;
  MDB_val data;
} holds[kMostHeld];
static size_t held;
static unsigned used;
static MDB_env* writing;
static uint64_t commits;
static atomic_size_t errors;
static char* taken;
static size_t taken_bytes;

// -- what records are

// The newest version of record i as of version v.
static uint64_t version_of(uint64_t i, uint64_t v) {
  while (v > 0 && v % kParts != i % kParts) --v;
  return v;
}

static int right(const struct Slot* s, uint64_t i, const MDB_val* key, const MDB_val* data) {
  return number_of(key) == i && data->mv_size == known_size(&known, i) &&
         is_known(i, version_of(i, s->version), data->mv_data, data->mv_size);
}

// Calls leave errno alone; those that give EIO are made again.
static int get(MDB_cursor* cursor, MDB_val* key, MDB_val* data, MDB_cursor_op op) {
  for (int tries = 0;; ++tries) {
    errno = kErrno;
    const int rc = mdb_cursor_get(cursor, key, data, op);
    if (errno != kErrno) {
      say("errno is %d after %s", errno, op_name(op));
      fflush(stdout);
      _exit(1);
    }
    if (rc != EIO || tries == kPatience) return rc;
    atomic_fetch_add(&errors, 1);
  }
}

// -- walks: each gives how many were right, or -1 and says what was not

static long failed_at(size_t i, int rc) {
  say("record %zu: %s", i, rc == 0 ? "wrong" : mdb_strerror(rc));
  return -1;
}

static int at_end(struct Slot* s, MDB_val* key, MDB_val* data) {
  const int rc = get(s->cursor, key, data, MDB_NEXT);
  return versions && rc == 0 ? number_of(key) == LAST_KEY : rc == MDB_NOTFOUND;
}

// Up to n records more; from the first, if none was read.
static long go_on(struct Slot* s, size_t n) {
  MDB_val key, data;
  long done = 0;
  for (; n > 0 && s->at < known.records; --n, ++done, ++s->at) {
    const int rc = get(s->cursor, &key, &data, s->at == 0 ? MDB_FIRST : MDB_NEXT);
    if (rc != 0 || !right(s, s->at, &key, &data)) return failed_at(s->at, rc);
  }
  if (s->at == known.records && !at_end(s, &key, &data)) return failed_at(s->at, 0);
  return done;
}

static long walk(struct Slot* s) {
  s->at = 0;
  return go_on(s, known.records);
}

static long walk_back(struct Slot* s) {
  MDB_val key, data;
  MDB_cursor_op op = MDB_LAST;
  if (versions) {
    const int rc = get(s->cursor, &key, &data, MDB_LAST);
    if (rc != 0 || number_of(&key) != LAST_KEY) return failed_at(known.records, rc);
    op = MDB_PREV;
  }
  for (size_t i = known.records; i-- > 0; op = MDB_PREV) {
    const int rc = get(s->cursor, &key, &data, op);
    if (rc != 0 || !right(s, i, &key, &data)) return failed_at(i, rc);
  }
  const int rc = get(s->cursor, &key, &data, MDB_PREV);
  return rc == MDB_NOTFOUND ? (long)known.records : failed_at(0, rc);
}

static long walk_from(struct Slot* s, uint64_t from) {
  unsigned char name[8];
  MDB_val key = known_key(from, &name), data;
  int rc = get(s->cursor, &key, &data, MDB_SET_RANGE);
  for (size_t i = from; i < known.records; ++i) {
    if (rc != 0 || !right(s, i, &key, &data)) return failed_at(i, rc);
    rc = get(s->cursor, &key, &data, MDB_NEXT);
  }
  return (long)(known.records - from);
}

// One cursor: to a record, and a few steps from there, forward or back.  Where a call fails it is made again
// (get).
static long wander(struct Slot* s, size_t moves, uint64_t seed) {
  uint64_t x = seed;
  size_t at = 0, steps = 0;
  for (size_t done = 0; done < moves; ++done) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    MDB_val key = {0, NULL}, data;
    unsigned char name[8];
    MDB_cursor_op op = (x >> 40) % 2 != 0 ? MDB_NEXT : MDB_PREV;
    if (steps == 0) {
      at = (size_t)(x >> 33) % known.records;
      steps = (size_t)(x >> 20) % 5;
      key = known_key(at, &name);
      op = MDB_SET_RANGE;
    } else {
      --steps;
      if (op == MDB_NEXT ? at + 1 == known.records : at == 0) continue;
      at = op == MDB_NEXT ? at + 1 : at - 1;
    }
    const int rc = get(s->cursor, &key, &data, op);
    if (rc != 0 || !right(s, at, &key, &data)) return failed_at(at, rc);
  }
  return (long)moves;
}

// Of a value that is not used the bytes are not touched.
static int right_or_unused(const struct Slot* s, uint64_t i, const MDB_val* key, const MDB_val* data,
                           int use) {
  return use ? right(s, i, key, data) : number_of(key) == i && data->mv_size == known_size(&known, i);
}

static long walk_stride(struct Slot* s, size_t period, size_t first, size_t uses) {
  MDB_val key, data;
  size_t i = 0, done = 0;
  for (size_t step = 0; done < uses; ++step, ++i) {
    int rc = get(s->cursor, &key, &data, step == 0 ? MDB_FIRST : MDB_NEXT);
    if (rc == MDB_NOTFOUND && i == known.records) {
      i = 0;
      rc = get(s->cursor, &key, &data, MDB_FIRST);
    }
    const int use = step >= first && (step - first) % period == 0;
    if (rc != 0 || !right_or_unused(s, i, &key, &data, use)) return failed_at(i, rc);
    done += (size_t)use;
  }
  s->at = i;
  return (long)done;
}

static long walk_stride_back(struct Slot* s, size_t period, size_t first) {
  MDB_val key, data;
  size_t done = 0;
  for (size_t step = 0; step < known.records; ++step) {
    const int use = step >= first && (step - first) % period == 0;
    const int rc = get(s->cursor, &key, &data, step == 0 ? MDB_LAST : MDB_PREV);
    if (rc != 0 || !right_or_unused(s, known.records - 1 - step, &key, &data, use))
      return failed_at(step, rc);
    done += (size_t)use;
  }
  s->at = 1;
  return (long)done;
}

static long walk_by_list(struct Slot* s, size_t n, const char* list) {
  MDB_val key, data;
  const size_t length = strspn(list, "uh-");
  long done = 0;
  for (size_t k = 0; k < n && s->at < known.records; ++k, ++s->at) {
    const int use = list[k % length] == 'u';
    const int rc = get(s->cursor, &key, &data, s->at == 0 ? MDB_FIRST : MDB_NEXT);
    if (rc != 0 || !right_or_unused(s, s->at, &key, &data, use)) return failed_at(s->at, rc);
    if (list[k % length] == 'h' && !is_known(s->at, version_of(s->at, s->version), data.mv_data, 4096))
      return failed_at(s->at, rc);
    done += use;
  }
  return done;
}

// Values are not asked for.
static long walk_keys(struct Slot* s) {
  MDB_val key;
  for (s->at = 0; s->at < known.records; ++s->at) {
    const int rc = get(s->cursor, &key, NULL, s->at == 0 ? MDB_FIRST : MDB_NEXT);
    if (rc != 0 || number_of(&key) != s->at) return failed_at(s->at, rc);
  }
  return (long)known.records;
}

// EIO is counted, and the call made again.
static int look_up(struct Slot* s, size_t turn, MDB_val* key, MDB_val* data, int by_cursor) {
  static const MDB_cursor_op ops[] = {MDB_SET, MDB_SET_KEY, MDB_SET_RANGE};
  if (by_cursor) return get(s->cursor, key, data, ops[turn % 3]);
  for (int tries = 0;; ++tries) {
    errno = kErrno;
    const int rc = mdb_get(s->txn, s->dbi, key, data);
    CHECK(errno == kErrno);
    if (rc != EIO || tries == kPatience) return rc;
    atomic_fetch_add(&errors, 1);
  }
}

static long look_up_all(struct Slot* s, size_t n, size_t step, int by_cursor) {
  enum { kAbsent = 7 };  // one in so many: there are no such keys
  for (size_t turn = 0; turn < n; ++turn) {
    const uint64_t i = (turn + 1) * step % known.records;
    unsigned char name[8];
    MDB_val key = known_key(i, &name), data;
    int rc = look_up(s, turn, &key, &data, by_cursor);
    if (rc != 0 || !right(s, i, &key, &data)) return failed_at(i, rc);
    if (turn % kAbsent != 0) continue;
    key = known_key(known.records + i, &name);
    rc = look_up(s, turn, &key, &data, by_cursor);
    const int found = versions && by_cursor && turn % 3 == 2;  // MDB_SET_RANGE: the record of versions
    if (rc != (found ? 0 : MDB_NOTFOUND)) return failed_at(known.records + i, rc);
  }
  return (long)n;
}

static long hold(struct Slot* s, size_t n, size_t step) {
  for (size_t turn = 0; turn < n; ++turn) {
    const uint64_t i = (turn + 1) * step % known.records;
    unsigned char name[8];
    MDB_val key = known_key(i, &name), data;
    const int rc = look_up(s, turn, &key, &data, 0);
    if (rc != 0 || !right(s, i, &key, &data)) return failed_at(i, rc);
    CHECK(held < kMostHeld);
    holds[held].slot = s;
    holds[held].record = i;
    holds[held++].data = data;
  }
  return (long)n;
}

static long still_held(const struct Slot* s) {
  long n = 0;
  for (size_t k = 0; k < held; ++k) {
    if (holds[k].slot != s) continue;
    const uint64_t i = holds[k].record;
    if (!is_known(i, version_of(i, s->version), holds[k].data.mv_data, holds[k].data.mv_size))
      return failed_at(i, 0);
    ++n;
  }
  return n;
}

static long forget(const struct Slot* s) {
  size_t left = 0;
  for (size_t k = 0; k < held; ++k)
    if (holds[k].slot != s) holds[left++] = holds[k];
  const size_t n = held - left;
  held = left;
  return (long)n;
}

struct Short {
  const struct Slot* slot;
  size_t n, first;
};

static void* short_transactions(void* arg) {
  const struct Short* const a = arg;
  struct Slot s = *a->slot;
  for (size_t turn = 0; turn < a->n; ++turn) {
    if (mdb_txn_begin(s.env, NULL, MDB_RDONLY, &s.txn) != 0) return (void*)-1L;
    const uint64_t i = (a->first + turn * 997) % known.records;
    unsigned char name[8];
    MDB_val key = known_key(i, &name), data;
    const int rc = look_up(&s, turn, &key, &data, 0);
    if (rc != 0 || !right(&s, i, &key, &data)) return (void*)failed_at(i, rc);
    mdb_txn_abort(s.txn);
  }
  return (void*)(long)a->n;
}

static long short_in_threads(const struct Slot* s, size_t threads, size_t n) {
  pthread_t thread[kMost];
  struct Short of[kMost];
  long sum = 0;
  CHECK(threads <= kMost);
  for (size_t i = 0; i < threads; ++i) {
    of[i] = (struct Short){s, n, known.records / threads * i};
    CHECK(pthread_create(&thread[i], NULL, short_transactions, &of[i]) == 0);
  }
  for (size_t i = 0; i < threads; ++i) {
    void* done;
    CHECK(pthread_join(thread[i], &done) == 0);
    sum = (long)done < 0 || sum < 0 ? -1 : sum + (long)done;
  }
  return sum;
}

static long walk_twice(struct Slot* s) {
  long sum = 0;
  for (int turn = 0; turn < 3; ++turn) {
    const long n = walk(s);
    if (n < 0) return n;
    sum += n;
  }
  return sum;
}

static long walk_pair(struct Slot* s) {
  struct Slot second = *s;
  MUST(mdb_cursor_open(s->txn, s->dbi, &second.cursor));
  s->at = second.at = 0;
  const size_t half = known.records / 2;
  long sum = go_on(s, half), n;
  while (sum >= 0 && (s->at < known.records || second.at < known.records)) {
    if ((n = go_on(s, 3)) < 0) return n;
    sum += n;
    if ((n = go_on(&second, 3)) < 0) return n;
    sum += n;
  }
  mdb_cursor_close(second.cursor);
  return sum;
}

static long walk_in_turns(void) {
  long sum = 0;
  for (unsigned i = 0; i < used; ++i) slots[i].at = 0;
  for (size_t done = 0; done < known.records; ++done)
    for (unsigned i = 0; i < used; ++i) {
      const long n = go_on(&slots[i], 1);
      if (n < 0) return n;
      sum += n;
    }
  return sum;
}

static void* walk_in_thread(void* slot) { return (void*)walk(slot); }

static long walk_in_threads(void) {
  pthread_t threads[kMost];
  long sum = 0;
  for (unsigned i = 0; i < used; ++i)
    CHECK(pthread_create(&threads[i], NULL, walk_in_thread, &slots[i]) == 0);
  for (unsigned i = 0; i < used; ++i) {
    void* n;
    CHECK(pthread_join(threads[i], &n) == 0);
    sum = (long)n < 0 || sum < 0 ? -1 : sum + (long)n;
  }
  return sum;
}

// Cursor calls are no cancellation points: the thread ends where it asks for it.
static void* walk_cancelled(void* slot) {
  pthread_cancel(pthread_self());
  const long n = walk(slot);
  atomic_store((atomic_long*)&slots[kMost - 1].at, n);
  pthread_testcancel();
  return NULL;
}

static long cancel(struct Slot* s) {
  pthread_t thread;
  void* how;
  CHECK(pthread_create(&thread, NULL, walk_cancelled, s) == 0 && pthread_join(thread, &how) == 0);
  return how == PTHREAD_CANCELED ? (long)slots[kMost - 1].at : -1;
}

// Children walk by the transaction they inherited, and by one of their own.
static int be_child(const struct Slot* parent, int tell) {
  const size_t kib = number_in("/proc/self/smaps_rollup", "Anonymous");
  struct Slot s = *parent;
  if (mdb_cursor_open(s.txn, s.dbi, &s.cursor) != 0) return 2;
  if (walk(&s) != (long)known.records) return 3;
  mdb_cursor_close(s.cursor);
  MDB_txn* txn;
  if (mdb_txn_begin(s.env, NULL, MDB_RDONLY, &txn) != 0 || mdb_cursor_open(txn, s.dbi, &s.cursor) != 0)
    return 4;
  if (go_on(&(struct Slot){s.env, txn, s.dbi, s.cursor, s.version, 0}, 50) != 50) return 5;
  mdb_cursor_close(s.cursor);
  mdb_txn_abort(txn);
  return write(tell, &kib, sizeof kib) == sizeof kib ? 0 : 6;
}

static void fork_children(struct Slot* s, unsigned n) {
  int pipe_ends[2];
  CHECK(pipe(pipe_ends) == 0);
  s->at = 0;
  long sum = 0;
  for (unsigned i = 0; i < n; ++i) {  // at several places, while the worker reads
    const long done = go_on(s, known.records / (n + 1));
    if (done < 0) {
      say("fork = the parent");
      return;
    }
    sum += done;
    fflush(stdout);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      const int status = be_child(s, pipe_ends[1]);
      fflush(stdout);
      _exit(status);
    }
  }
  const long done = go_on(s, known.records);
  sum += done;
  size_t most = 0;
  int failed = 0;
  for (unsigned i = 0; i < n; ++i) {
    int status = -1;
    size_t kib = 0;
    CHECK(wait(&status) > 0);
    if (status != 0)
      failed = status;
    else
      CHECK(read(pipe_ends[0], &kib, sizeof kib) == sizeof kib);
    most = kib > most ? kib : most;
  }
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  if (done < 0 || failed != 0)
    say("fork = parent %ld child %x", done, (unsigned)failed);
  else
    say("fork = right %ld anonymous_kib %zu", sum, most);
}

// -- environments

static void begin(struct Slot* s) {
  s->version = 0;
  s->at = 0;
  MUST(mdb_txn_begin(s->env, NULL, MDB_RDONLY, &s->txn));
  MUST(mdb_dbi_open(s->txn, NULL, 0, &s->dbi));
  MUST(mdb_cursor_open(s->txn, s->dbi, &s->cursor));
  if (!versions) return;
  unsigned char name[8];
  MDB_val key = known_key(LAST_KEY, &name), data;
  const int rc = mdb_get(s->txn, s->dbi, &key, &data);
  CHECK(rc == 0 && data.mv_size == 8);
  memcpy(&s->version, data.mv_data, 8);
}

// The bytes stay the same.
static void scatter(const char* dir, size_t parts) {
  MDB_env* env;
  MDB_dbi dbi;
  char* const value = malloc(known.bytes + 8);
  CHECK(value != NULL);
  MUST(mdb_env_create(&env));
  MUST(mdb_env_set_mapsize(env, (known.bytes + 8192) * known.records * 2 + (64u << 20)));
  MUST(mdb_env_open(env, dir, MDB_NOSYNC | MDB_NOMETASYNC, 0644));
  for (size_t part = 0; part < parts; ++part) {
    MDB_txn* txn;
    MUST(mdb_txn_begin(env, NULL, 0, &txn));
    MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
    for (size_t i = 0; i < known.records; ++i) {
      if (mixed(i + 1) % parts != part) continue;
      unsigned char name[8];
      MDB_val key = known_key(i, &name), data = {known_size(&known, i), value};
      fill_known(i, 0, value, data.mv_size);
      MUST(mdb_put(txn, dbi, &key, &data, 0));
    }
    MUST(mdb_txn_commit(txn));
  }
  mdb_env_close(env);
  free(value);
}

static int commit(void) {
  MDB_txn* txn;
  MDB_dbi dbi;
  char* const value = malloc(known.bytes + 8);
  ++commits;
  MUST(mdb_txn_begin(writing, NULL, 0, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
  unsigned char name[8];
  for (size_t i = commits % kParts; i < known.records; i += kParts) {
    MDB_val key = known_key(i, &name), data = {known_size(&known, i), value};
    fill_known(i, commits, value, data.mv_size);
    MUST(mdb_put(txn, dbi, &key, &data, 0));
  }
  MDB_val key = known_key(LAST_KEY, &name), data = {8, &commits};
  MUST(mdb_put(txn, dbi, &key, &data, 0));
  free(value);
  return mdb_txn_commit(txn);
}

// -- less of everything

static atomic_int ticks;

static void tick(int number) {
  (void)number;
  atomic_fetch_add(&ticks, 1);
}

static void storm(void) {
  struct sigaction action = {.sa_handler = tick};
  const struct itimerval every = {{0, 300}, {0, 300}};
  CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &every, NULL) == 0);
}

// Every second page of one range has another protection: each is an area of its own.
static size_t take_vmas(size_t left) {
  size_t most = 65530;
  FILE* const f = fopen("/proc/sys/vm/max_map_count", "re");
  if (f == NULL || fscanf(f, "%zu", &most) != 1) return 0;
  fclose(f);
  fflush(stdout);
  taken_bytes = most * 2 * 4096;
  taken = mmap(NULL, taken_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(taken != MAP_FAILED);
  size_t now = vmas_now();
  for (char* page = taken + 4096; now + left + 2 <= most; page += 8192, now += 2)
    if (mprotect(page, 4096, PROT_READ) != 0) break;
  return now;
}

static void limit(int what, size_t value) {
  const struct rlimit r = {value, value};
  CHECK(setrlimit(what, &r) == 0);
}

static int most_file(void) {
  int most = 0;
  DIR* const d = opendir("/proc/self/fd");
  CHECK(d != NULL);
  for (struct dirent* e; (e = readdir(d)) != NULL;) most = atoi(e->d_name) > most ? atoi(e->d_name) : most;
  closedir(d);
  return most;
}

static unsigned listed_tasks(void) {
  unsigned n = 0;
  DIR* const d = opendir("/proc/self/task");
  CHECK(d != NULL);
  for (struct dirent* e; (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
  closedir(d);
  return n;
}

// Threads that were joined may be listed a moment longer, until the kernel has taken down what they had.
static unsigned tasks(void) {
  enum { kTries = 200 };
  for (int i = 0; i < kTries && listed_tasks() != 1; ++i) usleep(1000);
  return listed_tasks();
}

// -- commands

static void told(const char* command, long n) {
  const size_t e = atomic_exchange(&errors, 0);
  if (n < 0)
    say("%s = wrong", command);
  else if (e != 0)
    say("%s = right %ld errors %zu", command, n, e);
  else
    say("%s = right %ld", command, n);
}

static void run(const char* command) {
  char word[32] = "", dir[3800] = "";
  size_t n[4] = {0, 0, 0, 0};
  int read = 0;
  CHECK(sscanf(command, "%31s %n", word, &read) == 1);
  const char* rest = command + read;
  if (*rest != '\0' && (*rest < '0' || *rest > '9')) {
    CHECK(sscanf(rest, "%3799s %n", dir, &read) == 1);
    rest += read;
  }
  const int numbers = sscanf(rest, "%zu %zu %zu %zu", &n[0], &n[1], &n[2], &n[3]);
  struct Slot* const s = &slots[n[0] < kMost ? n[0] : 0];
#define IS(name) (strcmp(word, name) == 0)
  if (IS("known"))
    known = (struct Known){n[0], n[1], n[2]};
  else if (IS("versions"))
    versions = 1;
  else if (IS("make"))
    make_known(dir, &known);
  else if (IS("scatter"))
    scatter(dir, n[0]);
  else if (IS("evict"))
    evict(dir);
  else if (IS("open")) {
    CHECK(used < kMost - 1);
    MUST(mdb_env_create(&slots[used].env));
    if (numbers > 0) MUST(mdb_env_set_mapsize(slots[used].env, n[0] << 20));
    MUST(mdb_env_open(slots[used++].env, dir, MDB_RDONLY | MDB_NOTLS, 0644));
  } else if (IS("same")) {
    CHECK(used < kMost - 1);
    slots[used++].env = s->env;
  } else if (IS("begin"))
    begin(s);
  else if (IS("end")) {
    mdb_cursor_close(s->cursor);
    mdb_txn_abort(s->txn);
  } else if (IS("close"))
    mdb_env_close(s->env);
  else if (IS("cursor-close"))
    mdb_cursor_close(s->cursor);
  else if (IS("resize"))
    MUST(mdb_env_set_mapsize(s->env, n[1] << 20));
  else if (IS("writer")) {
    MUST(mdb_env_create(&writing));
    MUST(mdb_env_set_mapsize(writing, (size_t)8 << 30));
    MUST(mdb_env_open(writing, dir, MDB_NOSYNC, 0644));
  } else if (IS("commit"))
    MUST(commit());
  else if (IS("storm"))
    storm();
  else if (IS("room")) {
    limit(RLIMIT_AS, (number_in("/proc/self/status", "VmSize") << 10) + (n[0] << 20));
  } else if (IS("files"))
    limit(RLIMIT_NOFILE, (size_t)most_file() + n[0]);
  else if (IS("memlock"))
    limit(RLIMIT_MEMLOCK, 0);
  else if (IS("free")) {
    CHECK(munmap(taken, taken_bytes) == 0);
  } else if (IS("areas")) {
    say("areas = %zu", take_vmas(n[0]));
    return;
  } else if (IS("tasks")) {
    say("tasks = %u", tasks());
    return;
  } else if (IS("fork")) {
    fork_children(s, (unsigned)n[1]);
    return;
  } else {
    long got = -2;
    if (IS("walk")) got = walk(s);
    if (IS("part")) s->at = 0, got = go_on(s, n[1]);
    if (IS("more")) got = go_on(s, n[1]);
    if (IS("rest")) got = go_on(s, known.records);
    if (IS("back")) got = walk_back(s);
    if (IS("range")) got = walk_from(s, n[1]);
    if (IS("wander")) got = wander(s, n[1], n[2]);
    if (IS("stride"))
      got = walk_stride(s, n[1], n[2], numbers > 3 ? n[3] : (known.records - n[2] + n[1] - 1) / n[1]);
    if (IS("stride-back")) got = walk_stride_back(s, n[1], n[2]);
    if (IS("keys")) got = walk_keys(s);
    if (IS("use-at")) got = walk_by_list(s, n[1], strpbrk(rest, "uh-"));
    if (IS("gets")) got = look_up_all(s, n[1], n[2], 0);
    if (IS("sets")) got = look_up_all(s, n[1], n[2], 1);
    if (IS("hold")) got = hold(s, n[1], n[2]);
    if (IS("held")) got = still_held(s);
    if (IS("forget")) got = forget(s);
    if (IS("short")) got = short_in_threads(s, n[1], n[2]);
    if (IS("twice")) got = walk_twice(s);
    if (IS("pair")) got = walk_pair(s);
    if (IS("turns")) got = walk_in_turns();
    if (IS("threads")) got = walk_in_threads();
    if (IS("cancel")) got = cancel(s);
    CHECK(got != -2);
    told(word, got);
    return;
  }
  say("%s = 0", word);
}

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "-") == 0) {
    char line[4096];
    while (fgets(line, sizeof line, stdin) != NULL) {
      line[strcspn(line, "\n")] = '\0';
      run(line);
      fflush(stdout);
    }
    return 0;
  }
  // Huge pages: off, as some systems and batch systems have it.
  if (getenv("COLD_NO_HUGE_PAGES") != NULL) CHECK(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0);
  for (int i = 1; i < argc; ++i) {
    run(argv[i]);
    fflush(stdout);
  }
  return 0;
}
