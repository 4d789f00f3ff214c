// Threads: which reader slots a seeded script of begin, abort, commit, reset and renew leaves in the lock
// file, for both ways of binding transactions and for tables that fill up; then cursors that change threads,
// many readers at once and the same path opened twice.  Threads take turns: the output does not depend on the
// scheduler.
//   readers DIR     DIR exists and is empty
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transcript.h"

enum { kThreads = 3, kSlots = 2, kRecords = 2000 };

// A worker thread runs one job at a time, handed over by the main thread, which waits for it.
typedef void Job(void* argument);
struct Worker {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  Job* job;  // guarded by mutex, as all below
  void* argument;
  int stop, running;
};

static void* work(void* argument) {
  struct Worker* w = argument;
  pthread_mutex_lock(&w->mutex);
  for (;;) {
    while (!w->job && !w->stop) pthread_cond_wait(&w->changed, &w->mutex);
    if (!w->job) break;
    w->job(w->argument);
    w->job = NULL;
    pthread_cond_broadcast(&w->changed);
  }
  pthread_mutex_unlock(&w->mutex);
  return NULL;
}

static void start(struct Worker* w) {
  w->job = NULL, w->stop = 0, w->running = 1;
  CHECK(pthread_mutex_init(&w->mutex, NULL) == 0 && pthread_cond_init(&w->changed, NULL) == 0);
  CHECK(pthread_create(&w->thread, NULL, work, w) == 0);
}

static void finish(struct Worker* w) {
  pthread_mutex_lock(&w->mutex);
  w->stop = 1;
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->mutex);
  pthread_join(w->thread, NULL);
  w->running = 0;
}

static void run_in(struct Worker* w, Job* job, void* argument) {
  pthread_mutex_lock(&w->mutex);
  w->job = job, w->argument = argument;
  pthread_cond_broadcast(&w->changed);
  while (w->job) pthread_cond_wait(&w->changed, &w->mutex);
  pthread_mutex_unlock(&w->mutex);
}

// Another process that commits when told to, so that new transactions get new numbers.  It opens the
// environment for each commit: who opens the lock file first sets the number of readers, and that must not be
// the writer.
static int writer_in[2], writer_out[2];

static void write_on_demand(const char* dir) {
  MDB_env* env;
  MDB_txn* txn;
  MDB_dbi dbi;
  char c;
  unsigned round = 0;
  while (read(writer_in[0], &c, 1) == 1) {
    MUST(mdb_env_create(&env));
    MUST(mdb_env_set_mapsize(env, 64u << 20));
    MUST(mdb_env_open(env, dir, MDB_NOSYNC, 0644));
    MUST(mdb_txn_begin(env, NULL, 0, &txn));
    MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
    for (unsigned i = 0; i < (round ? 1 : kRecords); ++i) {
      char name[16], value[64];
      snprintf(name, sizeof name, "k%05u", round ? (round * 37) % kRecords : i);
      snprintf(value, sizeof value, "value %u of round %u", i, round);
      MDB_val key = text(name), data = text(value);
      MUST(mdb_put(txn, dbi, &key, &data, 0));
    }
    MUST(mdb_txn_commit(txn));
    mdb_env_close(env);
    ++round;
    if (write(writer_out[1], &c, 1) != 1) break;
  }
}

static void commit_elsewhere(void) {
  char c = 'c';
  CHECK(write(writer_in[1], &c, 1) == 1);
  CHECK(read(writer_out[0], &c, 1) == 1);
}

static struct Worker workers[kThreads];
static pthread_t main_thread;

static int print_reader(const char* message, void* context) {
  (void)context;
  int pid;
  unsigned long tid;
  char txn[32];
  if (sscanf(message, "%d %lx %31s", &pid, &tid, txn) == 3) {
    int who = -1;
    for (int t = 0; t < kThreads; ++t)
      if (workers[t].running && (unsigned long)workers[t].thread == tid) who = t;
    if ((unsigned long)main_thread == tid) who = 99;
    say("    slot: %s thread %d txn %s", pid == getpid() ? "own" : "other", who, txn);
  } else {
    printf("    %s", message);
  }
  return 0;
}

struct Action {
  MDB_env* env;
  MDB_txn** txn;
  const char* name;
  int rc;
};

static void act(void* argument) {
  struct Action* a = argument;
  a->rc = 0;
  if (strcmp(a->name, "begin") == 0) {
    *a->txn = NULL;
    a->rc = mdb_txn_begin(a->env, NULL, MDB_RDONLY, a->txn);
    if (a->rc != 0) *a->txn = NULL;
  } else if (strcmp(a->name, "renew") == 0) {
    a->rc = mdb_txn_renew(*a->txn);
  } else if (strcmp(a->name, "reset") == 0) {
    mdb_txn_reset(*a->txn);
  } else if (strcmp(a->name, "abort") == 0) {
    mdb_txn_abort(*a->txn);
    *a->txn = NULL;
  } else if (strcmp(a->name, "commit") == 0) {
    a->rc = mdb_txn_commit(*a->txn);
    *a->txn = NULL;
  } else if (strcmp(a->name, "get") == 0) {
    MDB_cursor* cursor;
    MDB_val key = text("k00037"), data = untouched();
    a->rc = mdb_get(*a->txn, 1, &key, &data);
    show("got", &data);
    if (mdb_cursor_open(*a->txn, 1, &cursor) == 0) {
      key = untouched(), data = untouched();
      step(cursor, MDB_LAST, &key, &data);
      mdb_cursor_close(cursor);
    }
  }
}

// Stock knows the order of the main database only after this.
static void open_main(void* argument) {
  MDB_env* env = argument;
  MDB_txn* txn;
  MDB_dbi dbi;
  MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
  MUST(mdb_txn_commit(txn));
}

static unsigned next_random(unsigned* state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 16;
}

static void slots(const char* dir, unsigned flags, unsigned maxreaders, unsigned seed, int steps) {
  MDB_env* env;
  MDB_txn* txn[kThreads][kSlots] = {{NULL}};
  int is_reset[kThreads][kSlots] = {{0}};
  say("== flags %x, maxreaders %u, seed %u", flags, maxreaders, seed);
  MUST(mdb_env_create(&env));
  MUST(mdb_env_set_maxreaders(env, maxreaders));
  MUST(mdb_env_open(env, dir, MDB_RDONLY | flags, 0644));
  start(&workers[0]);
  run_in(&workers[0], open_main, env);
  finish(&workers[0]);  // and gives back its slot
  for (int t = 0; t < kThreads; ++t) start(&workers[t]);
  for (int i = 0; i < steps; ++i) {
    const unsigned t = next_random(&seed) % kThreads, s = next_random(&seed) % kSlots,
                   pick = next_random(&seed) % 8;
    MDB_txn** const mine = &txn[t][s];
    struct Action action = {env, mine, "begin", 0};
    if (*mine && is_reset[t][s])
      action.name = pick < 5 ? "renew" : pick == 5 ? "reset" : pick == 6 ? "abort" : "commit";
    else if (*mine)
      action.name = pick < 2    ? "get"
                    : pick < 5  ? "reset"
                    : pick == 5 ? "renew"
                    : pick == 6 ? "abort"
                                : "commit";
    else if (pick == 0 && !txn[t][!s]) {
      say("%d: thread %u ends and starts again", i, t);
      finish(&workers[t]);
      start(&workers[t]);
      continue;
    } else if (pick == 1) {
      commit_elsewhere();
      say("%d: commit elsewhere", i);
      continue;
    }
    run_in(&workers[t], act, &action);
    say("%d: thread %u, transaction %u: %s = %d", i, t, s, action.name, action.rc);
    if (*mine) {
      if (strcmp(action.name, "reset") == 0) is_reset[t][s] = 1;
      if (strcmp(action.name, "renew") == 0 && action.rc == 0) is_reset[t][s] = 0;
      if (strcmp(action.name, "begin") == 0) is_reset[t][s] = 0;
      say("    id %zu", mdb_txn_id(*mine));
    }
    MDB_envinfo info;
    MUST(mdb_env_info(env, &info));
    say("    readers %u of %u, last txn %zu", info.me_numreaders, info.me_maxreaders, info.me_last_txnid);
    mdb_reader_list(env, print_reader, NULL);
  }
  for (unsigned t = 0; t < kThreads; ++t)
    for (int s = 0; s < kSlots; ++s)
      if (txn[t][s]) {
        struct Action action = {env, &txn[t][s], "abort", 0};
        run_in(&workers[t], act, &action);
      }
  mdb_reader_list(env, print_reader, NULL);
  for (int t = 0; t < kThreads; ++t) finish(&workers[t]);
  mdb_reader_list(env, print_reader, NULL);
  mdb_env_close(env);
}

// -- a cursor that another thread goes on with; many at once; the path twice

struct Walk {
  MDB_env* env;
  MDB_txn* txn;
  MDB_cursor* cursor;
  int limit, count, rounds, failed;
  uint64_t sum;
};

static void walk_some(void* argument) {
  struct Walk* w = argument;
  MDB_val key, data;
  while (w->count < w->limit && mdb_cursor_get(w->cursor, &key, &data, MDB_NEXT) == 0) {
    w->sum = w->sum * 31 + hash_bytes(key.mv_data, key.mv_size) + hash_bytes(data.mv_data, data.mv_size);
    ++w->count;
  }
}

static void open_cursor(void* argument) {
  struct Walk* w = argument;
  MDB_dbi dbi;
  MUST(mdb_txn_begin(w->env, NULL, MDB_RDONLY, &w->txn));
  MUST(mdb_dbi_open(w->txn, NULL, 0, &dbi));
  MUST(mdb_cursor_open(w->txn, dbi, &w->cursor));
}

static void end_walk(void* argument) {
  struct Walk* w = argument;
  mdb_cursor_close(w->cursor);
  mdb_txn_abort(w->txn);
}

static void* walk_all(void* argument) {
  struct Walk* w = argument;
  w->limit = kRecords + 1;
  for (int i = 0; i < w->rounds; ++i) {
    const uint64_t before = w->sum;
    w->count = 0, w->sum = 0;
    open_cursor(w);
    walk_some(w);
    for (unsigned n = 0; n < 500; ++n) {
      char name[16];
      snprintf(name, sizeof name, "k%05u", n * 7919u % kRecords);
      MDB_val key = text(name), data;
      if (mdb_get(w->txn, 1, &key, &data) != 0) w->failed = 1;
    }
    end_walk(w);
    if (w->count != kRecords || (i > 0 && w->sum != before)) w->failed = 1;
  }
  return NULL;
}

static void together(const char* dir, unsigned flags) {
  MDB_env *env, *again;
  say("== together, flags %x", flags);
  MUST(mdb_env_create(&env));
  MUST(mdb_env_open(env, dir, MDB_RDONLY | flags, 0644));
  struct Walk walk = {.env = env};
  for (int t = 0; t < kThreads; ++t) start(&workers[t]);
  run_in(&workers[0], open_cursor, &walk);
  for (int t = 0; t < kThreads; ++t) {
    walk.limit += kRecords / kThreads;
    run_in(&workers[t], walk_some, &walk);
  }
  walk.limit = kRecords + 1;
  run_in(&workers[1], walk_some, &walk);
  run_in(&workers[0], end_walk, &walk);
  say("across threads: %d records, sum %016llx", walk.count, (unsigned long long)walk.sum);
  for (int t = 0; t < kThreads; ++t) finish(&workers[t]);

  struct Walk many[8];
  pthread_t thread[8];
  memset(many, 0, sizeof many);
  for (int t = 0; t < 8; ++t) {
    many[t].env = env, many[t].rounds = 20;
    CHECK(pthread_create(&thread[t], NULL, walk_all, &many[t]) == 0);
  }
  for (int t = 0; t < 8; ++t) pthread_join(thread[t], NULL);
  for (int t = 0; t < 8; ++t)
    say("reader %d: %d records, sum %016llx, failed %d", t, many[t].count, (unsigned long long)many[t].sum,
        many[t].failed);

  // The same path twice in a process: lmdb.h forbids it, data readers do it.
  MUST(mdb_env_create(&again));
  MUST(mdb_env_open(again, dir, MDB_RDONLY | flags, 0644));
  struct Walk first = {.env = env, .limit = 700}, second = {.env = again, .limit = 900};
  open_cursor(&first);
  open_cursor(&second);
  walk_some(&first);
  walk_some(&second);
  first.limit = second.limit = kRecords + 1;
  walk_some(&first);
  say("first: %d records, sum %016llx", first.count, (unsigned long long)first.sum);
  end_walk(&first);
  mdb_env_close(env);
  walk_some(&second);
  say("second: %d records, sum %016llx", second.count, (unsigned long long)second.sum);
  end_walk(&second);
  mdb_env_close(again);
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  CHECK(pipe(writer_in) == 0 && pipe(writer_out) == 0);
  const pid_t writer = fork();
  CHECK(writer >= 0);
  if (writer == 0) {
    close(writer_in[1]), close(writer_out[0]);
    write_on_demand(argv[1]);
    fflush(stdout);
    _exit(0);
  }
  close(writer_in[0]), close(writer_out[1]);
  main_thread = pthread_self();
  commit_elsewhere();
  together(argv[1], 0);
  together(argv[1], MDB_NOTLS);
  char lock[4200];
  snprintf(lock, sizeof lock, "%s/lock.mdb", argv[1]);
  for (unsigned maxreaders = 1; maxreaders <= 5; ++maxreaders)
    for (int notls = 0; notls < 2; ++notls)
      for (unsigned seed = 1; seed <= 3; ++seed) {
        unlink(lock);  // a lock file never shrinks
        slots(argv[1], notls ? MDB_NOTLS : 0, maxreaders, seed, 120);
      }
  close(writer_in[1]);
  int status = -1;
  CHECK(waitpid(writer, &status, 0) == writer && status == 0);
  return 0;
}
