// A pool of forked children on the environment, transaction and cursors of their parent, round after round,
// beside a writer that rewrites everything in each commit.  Every record tells the transaction that wrote it
// and is checked byte by byte: a reader whose snapshot was not protected meets records of others.
//   fork_pool make DIR
//   fork_pool write DIR                                 commits until its standard input ends
//   fork_pool read DIR FLAGS CHILDREN ROUNDS THREADS    threads of the parent that read all the time
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/shim/transcript.h"

enum { kPlain = 120, kDups = 500, kLargest = 6000, kOvertaken = 4, kLevels = 3 };

static const char* dir;
static unsigned flags;

// -- what is written

static size_t size_of(unsigned i) { return i % 3 ? 20 + i % 50 : kLargest - i; }
static unsigned char byte_of(size_t gen, unsigned i, size_t at) {
  return (unsigned char)(gen * 131 + i * 7 + at % 253);
}
static MDB_val name_of(unsigned i, char (*text_of)[16]) {
  snprintf(*text_of, sizeof *text_of, "k%05u", i);
  return text(*text_of);
}
static MDB_val dup_of(size_t gen, unsigned i, char (*text_of)[40]) {
  snprintf(*text_of, sizeof *text_of, "%06u of %zu", i, gen);
  return text(*text_of);
}

static MDB_env* open_env(unsigned open_flags) {
  MDB_env* env;
  MUST(mdb_env_create(&env));
  MUST(mdb_env_set_mapsize(env, (size_t)2 << 30));  // of what readers hold on loaded machines
  MUST(mdb_env_set_maxdbs(env, 4));
  MUST(mdb_env_open(env, dir, open_flags, 0644));
  return env;
}

static int commit(MDB_env* env) {
  static unsigned char value[kLargest];
  MDB_txn* txn;
  MDB_dbi plain, dups, late;
  MUST(mdb_txn_begin(env, NULL, 0, &txn));
  MUST(mdb_dbi_open(txn, "plain", MDB_CREATE, &plain));
  MUST(mdb_dbi_open(txn, "dups", MDB_CREATE | MDB_DUPSORT, &dups));
  MUST(mdb_dbi_open(txn, "late", MDB_CREATE, &late));
  const size_t gen = mdb_txn_id(txn);
  int rc = mdb_drop(txn, dups, 0);
  MDB_val key, data;
  char name[16], dup[40];
  for (unsigned i = 0; i < kPlain && rc == 0; ++i) {
    for (size_t k = 0; k < size_of(i); ++k) value[k] = byte_of(gen, i, k);
    key = name_of(i, &name), data.mv_data = value, data.mv_size = size_of(i);
    rc = mdb_put(txn, plain, &key, &data, 0);
  }
  for (unsigned i = 0; i < kDups && rc == 0; ++i) {
    key = text("key"), data = dup_of(gen, i, &dup);
    rc = mdb_put(txn, dups, &key, &data, 0);
  }
  key = text("gen"), data.mv_data = (void*)(uintptr_t)&gen, data.mv_size = sizeof gen;
  if (rc == 0) rc = mdb_put(txn, late, &key, &data, 0);
  if (rc == 0) return mdb_txn_commit(txn);
  mdb_txn_abort(txn);
  return rc;
}

static void write_until_told(void) {
  MDB_env* const env = open_env(MDB_NOSYNC);
  struct pollfd in = {0, POLLIN, 0};
  size_t commits = 0;
  say("ready");
  fflush(stdout);
  while (poll(&in, 1, 0) == 0) {
    const int rc = commit(env);
    if (rc == MDB_MAP_FULL) {  // of what readers hold
      sched_yield();
      continue;
    }
    MUST(rc);
    ++commits;
  }
  mdb_env_close(env);
  say("commits %zu", commits);
}

// -- what is read

struct Reader {
  MDB_env* env;
  MDB_dbi plain, dups;
  MDB_txn* txn;
  MDB_cursor *at_plain, *at_dups;  // half way
};

static void check_plain(size_t gen, unsigned i, const MDB_val* data) {
  const unsigned char* const bytes = data->mv_data;
  CHECK(data->mv_size == size_of(i));
  for (size_t k = 0; k < data->mv_size; ++k) CHECK(bytes[k] == byte_of(gen, i, k));
}

static void walk_plain(MDB_cursor* c, size_t gen, unsigned from, unsigned to) {
  MDB_val key, data;
  for (unsigned i = from; i < to; ++i) {
    MUST(mdb_cursor_get(c, &key, &data, i == 0 ? MDB_FIRST : MDB_NEXT));
    check_plain(gen, i, &data);
  }
  if (to == kPlain) CHECK(mdb_cursor_get(c, &key, &data, MDB_NEXT) == MDB_NOTFOUND);
}

static void walk_dups(MDB_cursor* c, size_t gen, unsigned from, unsigned to) {
  MDB_val key, data;
  char dup[40];
  for (unsigned i = from; i < to; ++i) {
    MUST(mdb_cursor_get(c, &key, &data, i == 0 ? MDB_FIRST : MDB_NEXT_DUP));
    const MDB_val want = dup_of(gen, i, &dup);
    CHECK(data.mv_size == want.mv_size && memcmp(data.mv_data, want.mv_data, want.mv_size) == 0);
  }
  if (to == kDups) CHECK(mdb_cursor_get(c, &key, &data, MDB_NEXT_DUP) == MDB_NOTFOUND);
}

// All of a transaction.
static void verify(const struct Reader* r, MDB_txn* txn) {
  const size_t gen = mdb_txn_id(txn);
  MDB_cursor* c;
  MUST(mdb_cursor_open(txn, r->plain, &c));
  walk_plain(c, gen, 0, kPlain);
  mdb_cursor_close(c);
  MUST(mdb_cursor_open(txn, r->dups, &c));
  walk_dups(c, gen, 0, kDups);
  mdb_cursor_close(c);
  for (unsigned n = 0; n < kPlain; ++n) {
    char name[16];
    MDB_val key = name_of(n * 7 % kPlain, &name), data;
    MUST(mdb_get(txn, r->plain, &key, &data));
    check_plain(gen, n * 7 % kPlain, &data);
  }
}

static void position(struct Reader* r) {
  const size_t gen = mdb_txn_id(r->txn);
  walk_plain(r->at_plain, gen, 0, kPlain / 2);
  walk_dups(r->at_dups, gen, 0, kDups / 2);
}

static void finish_walks(struct Reader* r) {
  const size_t gen = mdb_txn_id(r->txn);
  walk_plain(r->at_plain, gen, kPlain / 2, kPlain);
  walk_dups(r->at_dups, gen, kDups / 2, kDups);
}

static struct Reader open_reader(void) {
  struct Reader r = {.env = open_env(MDB_RDONLY | flags)};
  MUST(mdb_txn_begin(r.env, NULL, MDB_RDONLY, &r.txn));
  MUST(mdb_dbi_open(r.txn, "plain", 0, &r.plain));
  MUST(mdb_dbi_open(r.txn, "dups", 0, &r.dups));
  MUST(mdb_txn_commit(r.txn));
  return r;
}

static void begin(struct Reader* r) {
  MUST(mdb_txn_begin(r->env, NULL, MDB_RDONLY, &r->txn));
  MUST(mdb_cursor_open(r->txn, r->plain, &r->at_plain));
  MUST(mdb_cursor_open(r->txn, r->dups, &r->at_dups));
}

static void end(struct Reader* r) {
  mdb_cursor_close(r->at_plain);
  mdb_cursor_close(r->at_dups);
  mdb_txn_abort(r->txn);
}

static size_t newest(MDB_env* env) {
  MDB_envinfo info;
  MUST(mdb_env_info(env, &info));
  return info.me_last_txnid;
}

// Until the writer would have reused the pages of `gen`.
static void await_commits(MDB_env* env, size_t gen) {
  while (newest(env) < gen + kOvertaken) sched_yield();
}

// Slots of this process's calling thread, and how many there are of this process and of others.
struct Slots {
  char lines[1024];
  unsigned own, others;
};

static int one_slot(const char* line, void* out) {
  struct Slots* const s = out;
  int pid;
  unsigned long tid;
  if (sscanf(line, "%d %lx", &pid, &tid) != 2) return 0;
  if (pid != getpid()) {
    ++s->others;
    return 0;
  }
  ++s->own;
  if (tid != (unsigned long)pthread_self()) return 0;
  CHECK(strlen(s->lines) + strlen(line) < sizeof s->lines);
  strcat(s->lines, line);
  return 0;
}

static struct Slots slots_of(MDB_env* env) {
  struct Slots s = {"", 0, 0};
  CHECK(mdb_reader_list(env, one_slot, &s) >= 0);
  return s;
}

// -- children

static int measured[2];
struct Measure {
  int kind;
  long private_dirty_kib;
};

static void measure(int kind) {
  FILE* const f = fopen("/proc/self/smaps_rollup", "re");
  char line[256];
  struct Measure m = {kind, -1};
  while (f && fgets(line, sizeof line, f)) (void)sscanf(line, "Private_Dirty: %ld", &m.private_dirty_kib);
  if (f) fclose(f);
  CHECK(write(measured[1], &m, sizeof m) == (ssize_t)sizeof m);
}

static pid_t start_child(void) {
  fflush(stdout);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) alarm(300);
  return child;
}

static void wait_for(pid_t child) {
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  if (status != 0) say("child: status %x", (unsigned)status);
  CHECK(status == 0);
}

static const char* const kKinds[] = {
    "leaves at once", "reads what it inherited", "begins its own",         "two snapshots", "renews",
    "forks again",    "closes and opens",        "opens what is not open", "begins many"};
enum { kKindCount = sizeof kKinds / sizeof kKinds[0] };

static void new_snapshot(struct Reader* r) {
  begin(r);
  CHECK(slots_of(r->env).own >= 1);
  position(r);
  verify(r, r->txn);
  finish_walks(r);
}

static _Noreturn void be_child(struct Reader* r, int kind) {
  const size_t gen = mdb_txn_id(r->txn);
  if (kind > 1) {
    CHECK(slots_of(r->env).own == 0);
    await_commits(r->env, gen);
  }
  if (kind != 0) finish_walks(r);
  switch (kind) {
    case 1:
      verify(r, r->txn);
      break;
    case 2:
      end(r);
      new_snapshot(r);
      end(r);
      break;
    case 3:
      if (flags & MDB_NOTLS) {
        struct Reader other = *r;
        new_snapshot(&other);
        await_commits(r->env, mdb_txn_id(other.txn));
        verify(r, r->txn);
        verify(&other, other.txn);
        end(&other);
      }
      CHECK(mdb_txn_id(r->txn) == gen);
      verify(r, r->txn);
      end(r);
      break;
    case 4:
      mdb_txn_reset(r->txn);
      MUST(mdb_txn_renew(r->txn));
      MUST(mdb_cursor_renew(r->txn, r->at_plain));
      MUST(mdb_cursor_renew(r->txn, r->at_dups));
      // A writer shows a commit in its meta page before it shows it to readers.
      CHECK(mdb_txn_id(r->txn) + 1 >= gen + kOvertaken && slots_of(r->env).own == 1);
      position(r);
      await_commits(r->env, mdb_txn_id(r->txn));
      finish_walks(r);
      verify(r, r->txn);
      measure(kind);
      _exit(0);  // its slot stays until somebody looks
    case 5: {
      pid_t child = 0;
      for (int level = 1; child == 0; ++level) {
        end(r);
        begin(r);
        position(r);
        child = level < kLevels ? start_child() : -1;
      }
      await_commits(r->env, mdb_txn_id(r->txn));
      if (child > 0) wait_for(child);
      CHECK(slots_of(r->env).own == 1);
      finish_walks(r);
      verify(r, r->txn);
      end(r);
      break;
    }
    case 6:
      mdb_env_close(r->env);
      *r = open_reader();
      new_snapshot(r);
      end(r);
      break;
    case 7: {
      MDB_dbi late;
      MDB_val key = text("gen"), data;
      MUST(mdb_dbi_open(r->txn, "late", 0, &late));
      MUST(mdb_get(r->txn, late, &key, &data));
      CHECK(data.mv_size == sizeof gen && memcmp(data.mv_data, &gen, sizeof gen) == 0);
      end(r);
      const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
      MUST(mdb_env_copyfd2(r->env, null, MDB_CP_COMPACT));
      close(null);
      new_snapshot(r);
      end(r);
      break;
    }
    case 8:
      end(r);
      for (int n = 0; n < 20; ++n) {
        begin(r);
        verify(r, r->txn);
        end(r);
      }
      break;
    default:
      break;
  }
  measure(kind);
  if (kind > 1 && kind % 2 == 0) {
    CHECK(slots_of(r->env).own == !(flags & MDB_NOTLS));
    mdb_env_close(r->env);
  }
  fflush(stdout);
  _exit(0);
}

// -- the parent

static atomic_int stop;

static void* read_always(void* argument) {
  struct Reader r = *(struct Reader*)argument;
  while (!atomic_load(&stop)) {
    MUST(mdb_txn_begin(r.env, NULL, MDB_RDONLY, &r.txn));
    verify(&r, r.txn);
    mdb_txn_abort(r.txn);
  }
  return NULL;
}

static int by_size(const void* a, const void* b) {
  const long x = *(const long*)a, y = *(const long*)b;
  return (x > y) - (x < y);
}

static void tell_memory(const struct Measure* all, size_t n) {
  long* const of = calloc(n, sizeof *of);
  CHECK(of != NULL);
  for (int kind = 0; kind < kKindCount; ++kind) {
    size_t count = 0;
    for (size_t i = 0; i < n; ++i)
      if (all[i].kind == kind) of[count++] = all[i].private_dirty_kib;
    if (count == 0) continue;
    qsort(of, count, sizeof *of, by_size);
    say("private dirty KiB: %-24s children %5zu median %5ld max %5ld", kKinds[kind], count, of[count / 2],
        of[count - 1]);
  }
  free(of);
}

static void read_rounds(unsigned children, unsigned rounds, unsigned threads) {
  struct Reader r = open_reader();
  pthread_t thread[8];
  const size_t room = (size_t)rounds * children * kLevels;
  struct Measure* const all = calloc(room, sizeof *all);
  pid_t* const pid = calloc(children, sizeof *pid);
  size_t measures = 0;
  CHECK(threads <= 8 && all != NULL && pid != NULL && pipe2(measured, O_CLOEXEC | O_NONBLOCK) == 0);
  begin(&r);
  for (unsigned t = 0; t < threads; ++t) CHECK(pthread_create(&thread[t], NULL, read_always, &r) == 0);
  for (unsigned round = 0; round < rounds; ++round) {
    const size_t gen = mdb_txn_id(r.txn);
    position(&r);
    const struct Slots before = slots_of(r.env);
    CHECK(before.others == 0 && before.lines[0] != 0);
    for (unsigned c = 0; c < children; ++c) {
      pid[c] = start_child();
      if (pid[c] == 0) be_child(&r, (int)((c + round) % kKindCount));
    }
    await_commits(r.env, gen);
    for (unsigned c = 0; c < children; ++c) {
      wait_for(pid[c]);
      const ssize_t got = read(measured[0], all + measures, (room - measures) * sizeof *all);
      if (got > 0) measures += (size_t)got / sizeof *all;
    }
    int dead;
    MUST(mdb_reader_check(r.env, &dead));
    const struct Slots after = slots_of(r.env);
    if (strcmp(before.lines, after.lines) != 0) say("before:\n%safter:\n%s", before.lines, after.lines);
    CHECK(strcmp(before.lines, after.lines) == 0 && after.others == 0);
    CHECK(mdb_txn_id(r.txn) == gen);
    finish_walks(&r);
    verify(&r, r.txn);
    mdb_txn_reset(r.txn);
    MUST(mdb_txn_renew(r.txn));
    MUST(mdb_cursor_renew(r.txn, r.at_plain));
    MUST(mdb_cursor_renew(r.txn, r.at_dups));
  }
  atomic_store(&stop, 1);
  for (unsigned t = 0; t < threads; ++t) pthread_join(thread[t], NULL);
  end(&r);
  mdb_env_close(r.env);
  tell_memory(all, measures);
  say("rounds %u children %u", rounds, children);
  free(all);
  free(pid);
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  dir = argv[2];
  if (argc == 3 && strcmp(argv[1], "make") == 0) {
    MDB_env* const env = open_env(MDB_NOSYNC);
    MUST(commit(env));
    mdb_env_close(env);
  } else if (argc == 3 && strcmp(argv[1], "write") == 0) {
    write_until_told();
  } else if (argc == 7 && strcmp(argv[1], "read") == 0) {
    flags = (unsigned)strtoul(argv[3], NULL, 0);
    read_rounds((unsigned)atoi(argv[4]), (unsigned)atoi(argv[5]), (unsigned)atoi(argv[6]));
  } else {
    return 2;
  }
  return 0;
}
