// A process that joins and leaves what the processes of a node share, again and again.
//   node_cycles DIR THREADS CYCLES RECORDS
// CYCLES times: opens DIR, in which THREADS threads check RECORDS records each, from different ones on, and
// closes it. Says "cycles N joined N", and then what the process had after the first few cycles and what it
// has at the end: "descriptors A B", "threads A B", "segments A B", "mappings A B".  Joined: cycles with a
// node table attached.
#include <pthread.h>

#include "known.h"

enum { kMostThreads = 16, kWarm = 3, kMostReaders = 1024 };

static struct {
  MDB_env* env;
  size_t first, records;
} works[kMostThreads];

static void* work(void* number) {
  const size_t me = (size_t)number, first = works[me].first;
  MDB_txn* txn;
  MDB_dbi dbi;
  MDB_cursor* cursor;
  MDB_val data;
  unsigned char bytes[8];
  MUST(mdb_txn_begin(works[me].env, NULL, MDB_RDONLY, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
  MUST(mdb_cursor_open(txn, dbi, &cursor));
  MDB_val key = known_key(first, &bytes);
  for (size_t i = 0; i < works[me].records; ++i) {
    MUST(mdb_cursor_get(cursor, &key, &data, i == 0 ? MDB_SET_KEY : MDB_NEXT));
    CHECK(number_of(&key) == first + i && is_known(first + i, 0, data.mv_data, data.mv_size));
  }
  mdb_cursor_close(cursor);
  mdb_txn_abort(txn);
  return NULL;
}

static size_t entries(const char* path) {
  size_t n = 0;
  DIR* const dir = opendir(path);
  CHECK(dir != NULL);
  while (readdir(dir) != NULL) ++n;
  closedir(dir);
  return n - 3;  // ., .. and, in /proc/self/fd, that of the directory itself
}

// Lines of /proc/self/maps that have `what`.
static size_t maps_with(const char* what) {
  FILE* const f = fopen("/proc/self/maps", "re");
  CHECK(f != NULL);
  char line[512];
  size_t n = 0;
  while (fgets(line, sizeof line, f) != NULL) n += strstr(line, what) != NULL;
  fclose(f);
  return n;
}

struct Has {
  size_t descriptors, threads, segments, mappings;
};

static struct Has look(void) {
  // A thread that was joined is a task for a moment longer.
  for (int i = 0; i < 2000 && entries("/proc/self/task") + 1 > 1; ++i) usleep(1000);
  return (struct Has){entries("/proc/self/fd"), entries("/proc/self/task") + 1, maps_with("/SYSV"),
                      maps_with("-")};
}

int main(int argc, char** argv) {
  CHECK(argc == 5);
  const size_t threads = strtoull(argv[2], NULL, 0), cycles = strtoull(argv[3], NULL, 0),
               records = strtoull(argv[4], NULL, 0);
  CHECK(threads >= 1 && threads <= kMostThreads && cycles >= 1);
  size_t joined = 0;
  struct Has before = {0, 0, 0, 0};
  for (size_t n = 0; n < cycles; ++n) {
    pthread_t all[kMostThreads];
    MDB_env* env;
    MUST(mdb_env_create(&env));
    MUST(mdb_env_set_maxreaders(env, kMostReaders));
    MUST(mdb_env_open(env, argv[1], MDB_RDONLY, 0644));
    MDB_stat stat;
    MUST(mdb_env_stat(env, &stat));
    for (size_t t = 0; t < threads; ++t) {
      works[t].env = env;
      works[t].first = t * (stat.ms_entries - records) / threads;
      works[t].records = records;
      CHECK(pthread_create(&all[t], NULL, work, (void*)t) == 0);
    }
    for (size_t t = 0; t < threads; ++t) CHECK(pthread_join(all[t], NULL) == 0);
    joined += maps_with("/SYSV1db") != 0;
    mdb_env_close(env);
    if (n < kWarm) {
      const size_t mappings = before.mappings;
      before = look();
      if (before.mappings < mappings) before.mappings = mappings;
    }
  }
  const struct Has now = look();
  say("cycles %zu joined %zu descriptors %zu %zu threads %zu %zu segments %zu %zu mappings %zu %zu", cycles,
      joined, before.descriptors, now.descriptors, before.threads, now.threads, before.segments, now.segments,
      before.mappings, now.mappings);
  return 0;
}
