// Threads that walk two databases in all ways while a writer commits to one of them; values are checked byte by
// byte against what stands in the transaction's snapshot, when they are given and again when it ends.
//   walks make DIR
//   walks write DIR            says "ready", then commits to DIR/a until standard input ends
//   walks read DIR SECONDS THREADS FORKS
#include <errno.h>
#include <lmdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kRecords = 1200, kTurns = 64, kHeld = 512, kMaxThreads = 32 };

static void fail(const char* what, long a, long b) {
  fprintf(stderr, "walks: %s %ld %ld\n", what, a, b);
  abort();
}
static void must(int rc, const char* what) {
  if (rc == 0) return;
  fprintf(stderr, "walks: %s: %s\n", what, mdb_strerror(rc));
  abort();
}

// ---- what records hold ----

typedef struct {
  uint64_t version, number;
} Head;

static size_t size_of(uint64_t number) {
  const uint64_t r = number * 2654435761u >> 7;
  return number == 0 ? sizeof(Head) : number % 97 == 3 ? 3000000 + r % 3000000 : number % 5 == 0 ? 100 + r % 500 : 1000 + r % 50000;
}
static unsigned char byte_of(const Head* h, size_t i) {
  return (unsigned char)(h->number * 131 + h->version * 29 + (i >> 3) * 7 + i);
}
static void fill(unsigned char* to, uint64_t version, uint64_t number) {
  const Head h = {version, number};
  memcpy(to, &h, sizeof h);
  for (size_t i = sizeof h, n = size_of(number); i < n; ++i) to[i] = byte_of(&h, i);
}
/// The version in which a record was written last, at `version`.
static uint64_t last_write(uint64_t number, uint64_t version) {
  if (number == 0) return version;
  const uint64_t turn = number % kTurns, back = (version % kTurns + kTurns - turn) % kTurns;
  return back > version ? 0 : version - back;
}
static void check(const MDB_val* v, uint64_t number, uint64_t version) {
  Head h;
  if (v->mv_size != size_of(number)) fail("size of a value", (long)number, (long)v->mv_size);
  memcpy(&h, v->mv_data, sizeof h);
  if (h.number != number) fail("another record's value", (long)number, (long)h.number);
  const uint64_t expected = last_write(number, version);
  if (h.version != expected && !(expected == 0 && h.version == 0)) fail("another version's value", (long)expected, (long)h.version);
  const unsigned char* const p = v->mv_data;
  for (size_t i = sizeof h; i < v->mv_size; i += 61)
    if (p[i] != byte_of(&h, i)) fail("a byte of a value", (long)number, (long)i);
  if (p[v->mv_size - 1] != byte_of(&h, v->mv_size - 1) && v->mv_size > sizeof h) fail("the last byte", (long)number, 0);
}

// ---- environments ----

static MDB_env* open_env(const char* dir, const char* name, unsigned flags) {
  char path[4096];
  MDB_env* env = NULL;
  (void)snprintf(path, sizeof path, "%s/%s", dir, name);
  must(mdb_env_create(&env), "env_create");
  must(mdb_env_set_mapsize(env, (size_t)1 << 30), "env_set_mapsize");
  must(mdb_env_set_maxreaders(env, 500), "env_set_maxreaders");
  must(mdb_env_open(env, path, flags | MDB_NOSUBDIR, 0644), "env_open");
  if ((flags & MDB_RDONLY) != 0) {
    MDB_txn* txn;
    MDB_dbi dbi;
    must(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), "txn_begin");
    must(mdb_dbi_open(txn, NULL, 0, &dbi), "dbi_open");
    must(mdb_txn_commit(txn), "txn_commit");
  }
  return env;
}
static void key_of(char* to, uint64_t number) { (void)snprintf(to, 9, "%08lu", (unsigned long)number); }
static int put(MDB_txn* txn, MDB_dbi dbi, uint64_t version, uint64_t number) {
  char key[9];
  key_of(key, number);
  MDB_val k = {8, key}, v = {size_of(number), NULL};
  const int rc = mdb_put(txn, dbi, &k, &v, MDB_RESERVE);
  if (rc == 0) fill(v.mv_data, version, number);
  return rc;
}
static void make(const char* dir) {
  for (int i = 0; i < 2; ++i) {
    MDB_env* const env = open_env(dir, i == 0 ? "a" : "b", MDB_NOSYNC);
    MDB_txn* txn;
    MDB_dbi dbi;
    must(mdb_txn_begin(env, NULL, 0, &txn), "txn_begin");
    must(mdb_dbi_open(txn, NULL, 0, &dbi), "dbi_open");
    for (uint64_t n = 0; n < kRecords; ++n) must(put(txn, dbi, 0, n), "put");
    must(mdb_txn_commit(txn), "txn_commit");
    mdb_env_close(env);
  }
}
static int input_ended(int milliseconds) {
  struct pollfd in = {STDIN_FILENO, POLLIN, 0};
  return poll(&in, 1, milliseconds) != 0;
}
static void write_commits(const char* dir) {
  MDB_env* const env = open_env(dir, "a", MDB_NOSYNC);
  uint64_t version = 0;
  printf("ready\n");  // who opens it at the same time may see it empty, as in stock
  fflush(stdout);
  do {
    MDB_txn* txn;
    MDB_dbi dbi;
    must(mdb_txn_begin(env, NULL, 0, &txn), "txn_begin");
    must(mdb_dbi_open(txn, NULL, 0, &dbi), "dbi_open");
    int rc = put(txn, dbi, version + 1, 0);
    for (uint64_t n = (version + 1) % kTurns; n < kRecords && rc == 0; n += kTurns)
      if (n != 0) rc = put(txn, dbi, version + 1, n);
    if (rc == MDB_MAP_FULL) {  // slow readers hold what would be free
      mdb_txn_abort(txn);
      continue;
    }
    must(rc, "put");
    must(mdb_txn_commit(txn), "txn_commit");
    ++version;
  } while (!input_ended((version & 15) == 0 ? 300 : 10));
  mdb_env_close(env);
  printf("commits %lu\n", (unsigned long)version);
}

// ---- readers ----

static const char* directory;
static MDB_env* envs[2];
static atomic_int stop;
static atomic_ulong moves[kMaxThreads], snapshots, rewalks, opens, children;

typedef struct {
  MDB_txn* txn;
  MDB_dbi dbi;
  uint64_t version;
  unsigned held;
  struct {
    MDB_val value;
    uint64_t number;
  } hold[kHeld];
} Reader;

static uint64_t random_of(uint64_t* state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state;
}
static void begin(Reader* r, MDB_env* env) {
  char key[9];
  MDB_val k = {8, key}, v;
  must(mdb_txn_begin(env, NULL, MDB_RDONLY, &r->txn), "txn_begin");
  r->dbi = 1;  // the main database: opening it is for one thread at a time
  key_of(key, 0);
  must(mdb_get(r->txn, r->dbi, &k, &v), "get");
  memcpy(&r->version, v.mv_data, sizeof r->version);
  r->held = 0;
  atomic_fetch_add(&snapshots, 1);
}
static void given(Reader* r, unsigned self, const MDB_val* k, const MDB_val* v) {
  char key[9] = "";
  if (k->mv_size != 8) fail("size of a key", (long)k->mv_size, 0);
  memcpy(key, k->mv_data, 8);
  const uint64_t number = strtoul(key, NULL, 10);
  check(v, number, r->version);
  const unsigned at = r->held < kHeld ? r->held++ : (unsigned)(number * 7919 % kHeld);
  r->hold[at].value = *v;
  r->hold[at].number = number;
  atomic_fetch_add(&moves[self], 1);
}
static void end(Reader* r) {
  for (unsigned i = 0; i < r->held; ++i) check(&r->hold[i].value, r->hold[i].number, r->version);
  mdb_txn_abort(r->txn);
}
/// `way`: 0 all forward, 1 all backward, 2 jumps and walks both ways.
static void walk(Reader* r, unsigned self, int way, uint64_t* seed) {
  MDB_cursor* c;
  MDB_val k, v;
  int rc;
  must(mdb_cursor_open(r->txn, r->dbi, &c), "cursor_open");
  if (way < 2) {
    uint64_t n = 0;
    const MDB_cursor_op op = way == 0 ? MDB_NEXT : MDB_PREV;
    for (rc = mdb_cursor_get(c, &k, &v, op); rc == 0 && !atomic_load(&stop); rc = mdb_cursor_get(c, &k, &v, op)) {
      char key[9];
      key_of(key, way == 0 ? n : kRecords - 1 - n);
      if (k.mv_size != 8 || memcmp(k.mv_data, key, 8) != 0) fail("a walk out of order", (long)n, way);
      given(r, self, &k, &v);
      ++n;
    }
    if (rc != 0 && rc != MDB_NOTFOUND) must(rc, "cursor_get");
    if (rc == MDB_NOTFOUND && n != kRecords) fail("records", (long)n, way);
  } else {
    for (int i = 0; i < 12 && !atomic_load(&stop); ++i) {
      char key[9];
      key_of(key, random_of(seed) % kRecords);
      k.mv_size = 8;
      k.mv_data = key;
      rc = mdb_cursor_get(c, &k, &v, MDB_SET_RANGE);
      const MDB_cursor_op op = random_of(seed) % 2 != 0 ? MDB_NEXT : MDB_PREV;
      for (uint64_t left = random_of(seed) % 60; rc == 0; --left) {
        given(r, self, &k, &v);
        if (left == 0) break;
        rc = mdb_cursor_get(c, &k, &v, op);
      }
      if (rc != 0 && rc != MDB_NOTFOUND) must(rc, "cursor_get");
    }
  }
  mdb_cursor_close(c);
}

static void* reader(void* argument) {
  const unsigned self = (unsigned)(uintptr_t)argument;
  uint64_t seed = 88172645463325252u + self * 7919u;
  Reader* const r = malloc(sizeof *r);
  if (r == NULL) must(ENOMEM, "malloc");
  while (!atomic_load(&stop)) {
    MDB_env* const env = self % 4 == 3 ? open_env(directory, "b", MDB_RDONLY | MDB_NOTLS) : envs[random_of(&seed) % 4 == 0];
    begin(r, env);
    const int way = (int)(random_of(&seed) % 3);
    walk(r, self, way, &seed);
    if (self % 4 == 2)  // an old snapshot, in which everything is as it was
      for (int i = 0; i < 2 && !atomic_load(&stop); ++i) {
        walk(r, self, i, &seed);
        atomic_fetch_add(&rewalks, 1);
      }
    end(r);
    if (self % 4 == 3) {
      mdb_env_close(env);
      atomic_fetch_add(&opens, 1);
    }
  }
  free(r);
  return NULL;
}

/// In the child: a new transaction, and one that it was born with.
static void child_of(Reader* r, unsigned self) {
  uint64_t seed = (uint64_t)getpid() * 7919;
  for (int way = 0; way < 3; ++way) walk(r, self, way, &seed);
  end(r);
  Reader* const own = malloc(sizeof *own);
  if (own == NULL) _exit(3);
  begin(own, envs[0]);
  walk(own, self, (int)(seed % 3), &seed);
  end(own);
  free(own);
  _exit(0);
}
static void* forker(void* argument) {
  const unsigned self = (unsigned)(uintptr_t)argument;
  Reader* const r = malloc(sizeof *r);
  uint64_t seed = 99;
  if (r == NULL) must(ENOMEM, "malloc");
  while (!atomic_load(&stop)) {
    begin(r, envs[random_of(&seed) % 2]);
    walk(r, self, 2, &seed);
    const pid_t pid = fork();
    if (pid < 0) must(errno, "fork");
    if (pid == 0) child_of(r, self);
    int status = 0;
    for (int tenths = 0; waitpid(pid, &status, WNOHANG) == 0; ++tenths) {
      if (tenths > 1200) fail("a child hangs", (long)pid, 0);
      usleep(100000);
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fail("a child failed", status, 0);
    end(r);
    atomic_fetch_add(&children, 1);
  }
  free(r);
  return NULL;
}

static void read_all(const char* dir, unsigned seconds, unsigned threads, int forks) {
  pthread_t ids[kMaxThreads];
  unsigned long before[kMaxThreads] = {0};
  unsigned still[kMaxThreads] = {0};
  directory = dir;
  envs[0] = open_env(dir, "a", MDB_RDONLY | MDB_NOTLS);
  envs[1] = open_env(dir, "b", MDB_RDONLY | MDB_NOTLS);
  for (unsigned i = 0; i < threads; ++i)
    must(pthread_create(&ids[i], NULL, forks && i == 0 ? forker : reader, (void*)(uintptr_t)i), "pthread_create");
  for (unsigned s = 0; s < seconds; ++s) {
    sleep(1);
    for (unsigned i = forks ? 1 : 0; i < threads; ++i) {
      const unsigned long now = atomic_load(&moves[i]);
      still[i] = now == before[i] ? still[i] + 1 : 0;
      before[i] = now;
      if (still[i] >= 30) fail("a thread hangs", (long)i, (long)now);
    }
  }
  atomic_store(&stop, 1);
  unsigned long all = 0;
  for (unsigned i = 0; i < threads; ++i) {
    must(pthread_join(ids[i], NULL), "pthread_join");
    all += atomic_load(&moves[i]);
  }
  mdb_env_close(envs[0]);
  mdb_env_close(envs[1]);
  printf("moves %lu snapshots %lu rewalks %lu opens %lu children %lu\n", all, atomic_load(&snapshots), atomic_load(&rewalks),
         atomic_load(&opens), atomic_load(&children));
}

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "make") == 0) {
    make(argv[2]);
  } else if (argc == 3 && strcmp(argv[1], "write") == 0) {
    write_commits(argv[2]);
  } else if (argc == 6 && strcmp(argv[1], "read") == 0) {
    const unsigned threads = (unsigned)atoi(argv[4]);
    if (threads == 0 || threads > kMaxThreads) return 2;
    read_all(argv[2], (unsigned)atoi(argv[3]), threads, atoi(argv[5]));
  } else {
    return 2;
  }
  return 0;
}
