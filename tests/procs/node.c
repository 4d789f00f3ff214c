// One of several processes that walk the same database.
//   node make DIR RECORDS BYTES [VERSION]
//   node walk DIR STRIDE FIRST TURNS HOW     every STRIDE-th record from FIRST on, every byte of it checked
//        HOW: all at once ("run"), or "steps": says "at N" after each record and goes on with each line of its input
//   node get DIR STRIDE FIRST TURNS HOW      the same by mdb_get
//   node shuffled DIR STRIDE FIRST TURNS HOW   of all records in a certain random order, every STRIDE-th from FIRST on
//   VERSION: which bytes the records have; of readers in the environment, NODE_VERSION
//   NODE_EXIT in the environment: readers end without closing what they have open
#include "known.h"

static uint64_t version;

static void pause_at(const char* how, size_t at) {
  if (strcmp(how, "steps") != 0) return;
  char line[16];
  say("at %zu", at);
  CHECK(fgets(line, sizeof line, stdin) != NULL);
}

static size_t check(const MDB_val* key, const MDB_val* data) {
  const uint64_t n = number_of(key);
  CHECK(is_known(n, version, data->mv_data, data->mv_size));
  return n;
}

static size_t walk_once(MDB_txn* txn, MDB_dbi dbi, size_t stride, size_t first, const char* how) {
  MDB_cursor* cursor;
  MDB_val key, data;
  MUST(mdb_cursor_open(txn, dbi, &cursor));
  size_t n = 0, used = 0;
  int rc;
  for (rc = mdb_cursor_get(cursor, &key, &data, MDB_FIRST); rc == 0;
       rc = mdb_cursor_get(cursor, &key, &data, MDB_NEXT), ++n) {
    if (n % stride != first) continue;
    CHECK(check(&key, &data) == n);
    pause_at(how, n);
    ++used;
  }
  CHECK(rc == MDB_NOTFOUND);
  mdb_cursor_close(cursor);
  return used;
}

// Stride and first are of places in an order; that of the keys, or one in which `factor` comes between neighbours.
static size_t look_up_once(MDB_txn* txn, MDB_dbi dbi, size_t stride, size_t first, size_t factor, const char* how) {
  MDB_stat stat;
  MUST(mdb_stat(txn, dbi, &stat));
  size_t used = 0;
  for (size_t place = first; place < stat.ms_entries; place += stride, ++used) {
    const size_t n = place * factor % stat.ms_entries;
    unsigned char bytes[8];
    MDB_val key = known_key(n, &bytes), data;
    MUST(mdb_get(txn, dbi, &key, &data));
    CHECK(check(&key, &data) == n);
    pause_at(how, n);
  }
  return used;
}

static size_t get_once(MDB_txn* txn, MDB_dbi dbi, size_t stride, size_t first, const char* how) {
  return look_up_once(txn, dbi, stride, first, 1, how);
}
static size_t shuffled_once(MDB_txn* txn, MDB_dbi dbi, size_t stride, size_t first, const char* how) {
  enum { kPrime = 7919 };
  return look_up_once(txn, dbi, stride, first, kPrime, how);
}

int main(int argc, char** argv) {
  if ((argc == 5 || argc == 6) && strcmp(argv[1], "make") == 0) {
    const struct Known k = {strtoull(argv[3], NULL, 0), strtoull(argv[4], NULL, 0), 0};
    make_known_version(argv[2], &k, argc == 6 ? strtoull(argv[5], NULL, 0) : 0);
    return 0;
  }
  CHECK(argc == 7);
  if (getenv("NODE_VERSION") != NULL) version = strtoull(getenv("NODE_VERSION"), NULL, 0);
  setvbuf(stdout, NULL, _IOLBF, 0);
  MDB_env* env;
  MUST(mdb_env_create(&env));
  MUST(mdb_env_open(env, argv[2], MDB_RDONLY, 0644));
  size_t used = 0;
  for (int turns = atoi(argv[5]); turns > 0; --turns) {
    MDB_txn* txn;
    MDB_dbi dbi;
    MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
    MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
    used += (strcmp(argv[1], "get") == 0        ? get_once
             : strcmp(argv[1], "shuffled") == 0 ? shuffled_once
                                                : walk_once)(txn, dbi, strtoull(argv[3], NULL, 0),
                                                             strtoull(argv[4], NULL, 0), argv[6]);
    mdb_txn_abort(txn);
  }
  if (getenv("NODE_EXIT") == NULL) mdb_env_close(env);
  say("used %zu", used);
  return 0;
}
