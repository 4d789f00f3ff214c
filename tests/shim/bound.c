/* A program that loads the library where it may run on several CPUs, and reads in a thread that is bound to
 * one.
 *
 * bound make DIR     writes the database
 * bound read DIR     binds a thread, which walks, looks up and reads streams, everything cold, twice over
 *
 * Prints "without" where the library is not there, else which of its threads were seen; 1 if the mask of one
 * was not that which the process had when it started.  77: there is one CPU alone. */
#define LMDBIO_WEAK
#include <dirent.h>
#include <lmdbio/lmdbio.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "tests/procs/known.h"

enum { kAhead = 100, kBatch = 20, kPatience = 100, kMostNames = 16 };
static const struct Known known = {40000, 24000, 64}; /* many leaf pages: several threads make an index */

static cpu_set_t at_start;
static const char* dir;
static char names[kMostNames][32];
static unsigned seen, wrong;

static MDB_env* open_env(MDB_txn** txn, MDB_dbi* dbi) {
  MDB_env* env;
  MUST(mdb_env_create(&env));
  MUST(mdb_env_set_mapsize(env, 256u << 20));
  MUST(mdb_env_open(env, dir, MDB_RDONLY | MDB_NOTLS, 0644));
  MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, txn));
  MUST(mdb_dbi_open(*txn, NULL, 0, dbi));
  return env;
}

/* Which threads there are, and whether all of the library's may run where the process might. */
static void look(const char* after) {
  DIR* const tasks = opendir("/proc/self/task");
  CHECK(tasks != NULL);
  for (struct dirent* e; (e = readdir(tasks)) != NULL;) {
    const pid_t tid = (pid_t)atoi(e->d_name);
    char path[64], name[32] = "";
    cpu_set_t mask;
    snprintf(path, sizeof path, "/proc/self/task/%d/comm", (int)tid);
    FILE* const f = tid > 0 ? fopen(path, "re") : NULL;
    if (f == NULL) continue; /* it has ended */
    const int named = fscanf(f, "%31s", name);
    fclose(f);
    if (named != 1 || strncmp(name, "lmdbio", 6) != 0 || sched_getaffinity(tid, sizeof mask, &mask) != 0)
      continue;
    if (!CPU_EQUAL(&mask, &at_start)) {
      ++wrong;
      say("%s: %s may run on %d CPUs, the process on %d", after, name, CPU_COUNT(&mask),
          CPU_COUNT(&at_start));
    }
    unsigned k = 0;
    while (k < seen && strcmp(names[k], name) != 0) ++k;
    if (k == seen && seen < kMostNames) strcpy(names[seen++], name);
  }
  closedir(tasks);
}

static int progress(void* context, const char* what, uint64_t done, uint64_t total) {
  (void)context;
  (void)what;
  (void)done;
  (void)total;
  look("an index with progress");
  return 0;
}

static void walk(MDB_txn* txn, MDB_dbi dbi) {
  MDB_cursor* cursor;
  MDB_val key, data;
  MUST(mdb_cursor_open(txn, dbi, &cursor));
  for (uint64_t i = 0; i < known.records; ++i) {
    MUST(mdb_cursor_get(cursor, &key, &data, i == 0 ? MDB_FIRST : MDB_NEXT));
    CHECK(right_record(&known, i, &key, &data));
    if (i % 500 == 499) look("a walk");
  }
  mdb_cursor_close(cursor);
}

static void look_up(MDB_txn* txn, MDB_dbi dbi, uint64_t seed) {
  static unsigned char text[kAhead][8];
  MDB_val keys[kAhead], data;
  for (unsigned turn = 0; turn < 5; ++turn) {
    for (unsigned k = 0; k < kAhead; ++k)
      keys[k] = known_key(mixed(seed * 1000 + turn * kAhead + k) % known.records, &text[k]);
    MUST(lmdbio_prefetch(txn, dbi, keys, kAhead));
    look("lmdbio_prefetch");
    for (unsigned k = 0; k < kAhead; ++k) {
      MUST(mdb_get(txn, dbi, &keys[k], &data));
      CHECK(right_record(&known, number_of(&keys[k]), &keys[k], &data));
    }
  }
}

static void stream(MDB_txn* txn, MDB_dbi dbi, lmdbio_progress_func* told) {
  lmdbio_reader* reader;
  lmdbio_stream* batches;
  const lmdbio_batch* batch;
  const lmdbio_reader_options options = {
      .size = sizeof options, .memory = 8u << 20, .no_index_file = 1, .progress = told};
  const lmdbio_order order = {.size = sizeof order,
                              .kind = LMDBIO_ORDER_SHUFFLE,
                              .batch = kBatch,
                              .seed = 5,
                              .end_epoch = LMDBIO_ENDLESS};
  MUST(lmdbio_reader_attach(txn, dbi, &options, &reader));
  look("a reader's index");
  MUST(lmdbio_stream_open(reader, &order, &batches));
  for (unsigned n = 0; n < 100; ++n) {
    MUST(lmdbio_stream_next(batches, &batch));
    for (size_t k = 0; k < batch->count; ++k) {
      const lmdbio_record* const r = &batch->records[k];
      CHECK(right_record(&known, r->ordinal, &r->key, &r->value));
    }
    lmdbio_batch_release(batch);
    if (n % 10 == 0) look("a stream");
  }
  lmdbio_stream_close(batches);
  lmdbio_reader_close(reader);
}

static void* read_all(void* one) {
  CHECK(sched_setaffinity(0, sizeof(cpu_set_t), one) == 0);
  for (unsigned turn = 0; turn < 2; ++turn) {
    MDB_txn* txn;
    MDB_dbi dbi;
    evict(dir);
    MDB_env* const env = open_env(&txn, &dbi);
    walk(txn, dbi);
    if (lmdbio_prefetch) {
      look_up(txn, dbi, turn + 1);
      stream(txn, dbi, NULL);
      stream(txn, dbi, progress);
    }
    mdb_txn_abort(txn);
    mdb_env_close(env);
  }
  cpu_set_t still;
  CHECK(sched_getaffinity(0, sizeof still, &still) == 0 && CPU_EQUAL(&still, (cpu_set_t*)one));
  return NULL;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  dir = argv[2];
  if (strcmp(argv[1], "make") == 0) {
    make_known(dir, &known);
    return 0;
  }
  alarm(kPatience);
  CHECK(sched_getaffinity(0, sizeof at_start, &at_start) == 0);
  if (CPU_COUNT(&at_start) < 2) return 77;
  cpu_set_t one;
  CPU_ZERO(&one);
  for (size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &at_start)) CPU_SET(cpu, &one);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, read_all, &one) == 0 && pthread_join(thread, NULL) == 0);
  if (lmdbio_prefetch == NULL) {
    say("without");
    return 0;
  }
  for (unsigned k = 0; k < seen; ++k) say("seen %s", names[k]);
  return wrong == 0 ? 0 : 1;
}
