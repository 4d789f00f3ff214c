// What Intel-Caffe does in shuffle mode: walks the database once and keeps every value's pointer, then reads
// them all in random order until the transaction ends, without a call of LMDB; here from two threads, while
// children are forked that read some of them too, and then walk by themselves.  Every byte is checked.
//   shuffle make DIR RECORDS BYTES
//   shuffle read DIR PASSES CHILDREN CHILD_VALUES CHILD_WALK
//                            PASSES: of each thread over all values; at least CHILDREN are forked meanwhile;
//                            each reads CHILD_VALUES by the parent's pointers and walks CHILD_WALK records
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "known.h"

enum { kThreads = 2, kAlive = 2 };

static struct Known known;
static MDB_val* values;
static size_t count, passes;
static atomic_int running, wrong;
static atomic_size_t reads;

static MDB_env* open_env(const char* dir, MDB_txn** txn, MDB_dbi* dbi) {
  MDB_env* env;
  MUST(mdb_env_create(&env));
  MUST(mdb_env_open(env, dir, MDB_RDONLY | MDB_NOTLS, 0644));
  MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, txn));
  MUST(mdb_dbi_open(*txn, NULL, 0, dbi));
  return env;
}

static uint64_t next_random(uint64_t* state) { return mixed(*state += 0x9E3779B97F4A7C15u); }

static int right_value(size_t i) { return is_known(i, 0, values[i].mv_data, values[i].mv_size); }

static void* read_all(void* number) {
  uint64_t state = 100 + (uintptr_t)number;
  uint32_t* const order = malloc(count * sizeof *order);
  CHECK(order != NULL);
  for (size_t p = 0; p < passes; ++p) {
    for (size_t i = 0; i < count; ++i) order[i] = (uint32_t)i;
    for (size_t i = count - 1; i > 0; --i) {
      const size_t j = next_random(&state) % (i + 1);
      const uint32_t held = order[i];
      order[i] = order[j], order[j] = held;
    }
    for (size_t i = 0; i < count; ++i)
      if (!right_value(order[i])) atomic_fetch_add(&wrong, 1);
    atomic_fetch_add(&reads, count);
  }
  free(order);
  atomic_fetch_sub(&running, 1);
  return NULL;
}

// A child's exit status: 0: all right.
static int be_child(MDB_txn* txn, MDB_dbi dbi, uint64_t seed, size_t child_values, size_t child_walk) {
  uint64_t state = seed;
  for (size_t n = 0; n < child_values; ++n)
    if (!right_value(next_random(&state) % count)) return 2;
  if (child_walk == 0) return 0;
  MDB_cursor* cursor;
  MDB_val key, data;
  if (mdb_cursor_open(txn, dbi, &cursor) != 0) return 3;
  for (size_t i = 0; i < child_walk && i < count; ++i)
    if (mdb_cursor_get(cursor, &key, &data, i == 0 ? MDB_FIRST : MDB_NEXT) != 0 ||
        !right_record(&known, i, &key, &data))
      return 4;
  for (size_t n = 0; n < child_values; ++n)  // its own chunks are reclaimed as well
    if (!right_value(next_random(&state) % count)) return 5;
  mdb_cursor_close(cursor);
  return 0;
}

static void read_shuffled(const char* dir, size_t children, size_t child_values, size_t child_walk) {
  MDB_txn* txn;
  MDB_dbi dbi;
  MDB_env* const env = open_env(dir, &txn, &dbi);
  MDB_stat stat;
  MUST(mdb_stat(txn, dbi, &stat));
  values = malloc(stat.ms_entries * sizeof *values);
  CHECK(values != NULL);
  MDB_cursor* cursor;
  MDB_val key, data;
  MUST(mdb_cursor_open(txn, dbi, &cursor));
  int rc;
  for (rc = mdb_cursor_get(cursor, &key, &data, MDB_FIRST); rc == 0;
       rc = mdb_cursor_get(cursor, &key, &data, MDB_NEXT)) {
    CHECK(count < stat.ms_entries && number_of(&key) == count);
    // As programs that look at each record once.
    CHECK(is_known(count, 0, data.mv_data, data.mv_size));
    values[count++] = data;
  }
  CHECK(rc == MDB_NOTFOUND && count == stat.ms_entries && count > 0);
  known = (struct Known){count, values[0].mv_size, 0};
  say("walked");
  fflush(stdout);

  pthread_t threads[kThreads];
  atomic_store(&running, kThreads);
  for (size_t t = 0; t < kThreads; ++t) CHECK(pthread_create(&threads[t], NULL, read_all, (void*)t) == 0);
  size_t forked = 0, alive = 0, failed = 0;
  while (atomic_load(&running) > 0 || forked < children || alive > 0) {
    const int more = atomic_load(&running) > 0 || forked < children;
    if (more && alive < kAlive) {
      fflush(stdout);
      const pid_t child = fork();
      CHECK(child >= 0);
      if (child == 0) _exit(be_child(txn, dbi, forked, child_values, child_walk));
      ++forked, ++alive;
      continue;
    }
    int status;
    CHECK(wait(&status) > 0);
    --alive;
    if (status != 0) {
      ++failed;
      say("a child ended with %x", (unsigned)status);
    }
  }
  for (size_t t = 0; t < kThreads; ++t) CHECK(pthread_join(threads[t], NULL) == 0);
  mdb_cursor_close(cursor);
  mdb_txn_abort(txn);
  mdb_env_close(env);
  say("records %zu reads %zu forks %zu wrong %d failed %zu", count, atomic_load(&reads), forked,
      atomic_load(&wrong), failed);
  exit(failed != 0 || atomic_load(&wrong) != 0);
}

int main(int argc, char** argv) {
  if (argc == 5 && strcmp(argv[1], "make") == 0) {
    const struct Known k = {strtoull(argv[3], NULL, 0), strtoull(argv[4], NULL, 0), 0};
    make_known(argv[2], &k);
    return 0;
  }
  if (argc == 7 && strcmp(argv[1], "read") == 0) {
    passes = strtoull(argv[3], NULL, 0);
    read_shuffled(argv[2], strtoull(argv[4], NULL, 0), strtoull(argv[5], NULL, 0),
                  strtoull(argv[6], NULL, 0));
  }
  fprintf(stderr,
          "usage: shuffle make DIR RECORDS BYTES | read DIR PASSES CHILDREN CHILD_VALUES CHILD_WALK\n");
  return 2;
}
