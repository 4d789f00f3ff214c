// One program for LMDB 0.9 and 1.0.
//   releases write DIR    makes a database in DIR, which is empty, with nested transactions and, if built for
//                         1.0 (LMDB_10), with the functions that only 1.0 has
//   releases read DIR     opens such a database read-only and prints all that it reads
#include <errno.h>

#include "lmdb_10.h"
#include "transcript.h"

enum { kRecords = 3000 };

static void fill(MDB_txn* txn, MDB_dbi dbi, unsigned from, unsigned to) {
  static char value[9000];
  for (unsigned i = from; i < to; ++i) {
    char name[16];
    snprintf(name, sizeof name, "k%05u", i);
    memset(value, (int)('a' + i % 26), sizeof value);
    MDB_val key = text(name), data = {i % 50 ? i % 200 : sizeof value, value};
    MUST(mdb_put(txn, dbi, &key, &data, 0));
  }
}

static int put_text(MDB_txn* txn, MDB_dbi dbi, const char* k, const char* v) {
  MDB_val key = text(k), data = text(v);
  return mdb_put(txn, dbi, &key, &data, 0);
}

static void move_to(MDB_cursor* cursor, MDB_cursor_op op) {
  MDB_val key = untouched(), data = untouched();
  step(cursor, op, &key, &data);
}

static MDB_env* open_environment(const char* dir, unsigned flags) {
  MDB_env* env;
  MUST(mdb_env_create(&env));
  MUST(mdb_env_set_mapsize(env, 32u << 20));
  MUST(mdb_env_set_maxdbs(env, 8));
  const int rc = mdb_env_open(env, dir, flags, 0644);
  say("open = %d", rc);
  if (rc == 0) return env;
  mdb_env_close(env);
  return NULL;
}

#ifdef LMDB_10
static void functions_of_10(MDB_env* env, MDB_dbi named) {
  MDB_txn *txn, *child[2];
  MDB_cursor *cursor, *inner;
  unsigned flags = 0;
  CALL(mdb_env_set_pagesize(env, 4096));  // too late, for LMDB itself
  MUST(mdb_txn_begin(env, NULL, 0, &txn));
  CALL(mdb_txn_flags(txn, &flags));
  say("flags %u", flags);
  MUST(mdb_cursor_open(txn, 1, &cursor));
  move_to(cursor, MDB_LAST);
  say("is a database: %d", mdb_cursor_is_db(cursor));
  move_to(cursor, MDB_FIRST);
  say("is a database: %d", mdb_cursor_is_db(cursor));
  // Several read-only children at a time, which 0.9 refuses.
  CALL(put_text(txn, named, "before", "children"));
  int children = 0;
  while (children < 2 && CALL(mdb_txn_begin(env, txn, MDB_RDONLY, &child[children])) == 0) ++children;
  for (int i = 0; i < children; ++i) {
    MDB_val key = text("before"), data = untouched();
    MUST(mdb_cursor_open(child[i], named, &inner));
    step(inner, MDB_SET, &key, &data);
    CHECK(mdb_cursor_txn(inner) == child[i] && mdb_txn_env(child[i]) == env);
    CALL(mdb_txn_flags(child[i], &flags));
    say("flags %u", flags);
    mdb_cursor_close(inner);
  }
  for (int i = 0; i < children; ++i) mdb_txn_abort(child[i]);
  move_to(cursor, MDB_NEXT);
  // The first call commits all but the meta page, and closes the cursors.
  CALL(mdb_txn_prepare(txn));
  CALL(mdb_txn_prepare(txn));
  CALL(mdb_txn_commit(txn));
  // A read-only transaction and a child end with it.
  MUST(mdb_txn_begin(env, NULL, 0, &txn));
  CALL(put_text(txn, named, "prepared", "and aborted"));
  MUST(mdb_cursor_open(txn, 1, &cursor));
  CALL(mdb_txn_prepare(txn));
  mdb_txn_abort(txn);
  CALL(mdb_env_rollback(env, 99));
}
#endif

static int write_all(const char* dir) {
  MDB_txn *txn, *child;
  MDB_dbi main_dbi, named, dups;
  MDB_cursor* cursor;
  MDB_env* const env = open_environment(dir, MDB_NOSYNC);
  if (env == NULL) return 1;
  MUST(mdb_txn_begin(env, NULL, 0, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &main_dbi));
  MUST(mdb_dbi_open(txn, "named", MDB_CREATE, &named));
  MUST(mdb_dbi_open(txn, "dups", MDB_CREATE | MDB_DUPSORT, &dups));
  fill(txn, main_dbi, 0, kRecords);
  fill(txn, named, 500, 600);
  for (unsigned i = 0; i < 500; ++i) {
    char value[16];
    snprintf(value, sizeof value, "v%03u", i);
    CHECK(put_text(txn, dups, i % 7 ? "many" : "few", value) == 0);
  }
  MUST(mdb_txn_commit(txn));
  for (int commit = 0; commit < 2; ++commit) {
    MUST(mdb_txn_begin(env, NULL, 0, &txn));
    MUST(mdb_cursor_open(txn, named, &cursor));
    move_to(cursor, MDB_FIRST);
    MUST(mdb_txn_begin(env, txn, 0, &child));
    CHECK(mdb_cursor_txn(cursor) == child);
    CALL(put_text(child, named, commit ? "committed" : "aborted", "child"));
    if (commit)
      CALL(mdb_txn_commit(child));
    else
      mdb_txn_abort(child);
    move_to(cursor, MDB_NEXT);
    CALL(mdb_txn_commit(txn));
  }
#ifdef LMDB_10
  functions_of_10(env, named);
#endif
  mdb_env_close(env);
  return 0;
}

// EACCES in 0.9.
static int is_read_only(int rc) { return rc == EACCES || rc == MDB_IS_READONLY; }

static void walk(MDB_txn* txn, MDB_dbi dbi, MDB_cursor_op op) {
  MDB_cursor* cursor;
  MDB_val key, data;
  uint64_t sum = 0;
  int n = 0, rc;
  MUST(mdb_cursor_open(txn, dbi, &cursor));
  for (; (rc = mdb_cursor_get(cursor, &key, &data, op)) == 0; ++n)
    sum = sum * 31 + hash_bytes(key.mv_data, key.mv_size) + hash_bytes(data.mv_data, data.mv_size);
  say("walk %d: %d records, sum %016llx, last %d", op, n, (unsigned long long)sum, rc);
  CHECK(is_read_only(mdb_cursor_put(cursor, &key, &data, 0)) && is_read_only(mdb_cursor_del(cursor, 0)));
  mdb_cursor_close(cursor);
}

static void read_transaction(MDB_env* env, MDB_txn* txn) {
  static const char* const names[] = {NULL, "named", "dups", "none"};
  for (int i = 0; i < 4; ++i) {
    MDB_dbi dbi;
    MDB_stat stat;
    unsigned flags = 0;
    const int rc = mdb_dbi_open(txn, names[i], 0, &dbi);
    say("%s = %d", names[i] ? names[i] : "main", rc);
    if (rc != 0) continue;
    MUST(mdb_dbi_flags(txn, dbi, &flags));
    MUST(mdb_stat(txn, dbi, &stat));
    say("flags %u, %zu entries", flags, stat.ms_entries);
    if (i > 0) {  // databases in the main one have other records in 1.0
      walk(txn, dbi, MDB_NEXT);
      walk(txn, dbi, MDB_PREV);
      walk(txn, dbi, MDB_NEXT_NODUP);
    }
    for (unsigned k = 0; k < 60; ++k) {
      char name[16];
      snprintf(name, sizeof name, "k%05u", k * 67 % 4000);
      MDB_val key = text(name), data = untouched();
      printf("get %s = %d", name, mdb_get(txn, dbi, &key, &data));
      show("data", &data);
      putchar('\n');
    }
    MDB_val key = text("k00000"), data = text("x");
    CHECK(is_read_only(mdb_put(txn, dbi, &key, &data, 0)) && is_read_only(mdb_del(txn, dbi, &key, NULL)));
    CHECK(is_read_only(mdb_drop(txn, dbi, 0)));
  }
  MDB_dbi created;
  MDB_txn* writer;
  CHECK(is_read_only(mdb_dbi_open(txn, "none", MDB_CREATE, &created)));
  CHECK(is_read_only(mdb_txn_begin(env, NULL, 0, &writer)));
}

static int read_all(const char* dir) {
  MDB_txn* txn;
  MDB_env* const env = open_environment(dir, MDB_RDONLY);
  if (env == NULL) return 1;
  unsigned flags = 0;
  MDB_envinfo info;
  MUST(mdb_env_get_flags(env, &flags));
  MUST(mdb_env_info(env, &info));
  say("flags %x, map of %zu bytes, key size %d", flags, info.me_mapsize, mdb_env_get_maxkeysize(env));
  MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
  read_transaction(env, txn);
#ifdef LMDB_10
  MDB_cursor* cursor;
  MDB_val key = {0, NULL}, data;
  CHECK(mdb_txn_flags(txn, &flags) == 0 && flags == MDB_RDONLY);
  MUST(mdb_cursor_open(txn, 1, &cursor));
  CHECK(mdb_cursor_is_db(cursor) == 0);
  int databases = 0;
  while (mdb_cursor_get(cursor, &key, &data, MDB_NEXT) == 0)
    databases += mdb_cursor_is_db(cursor) == (key.mv_size < 6 || *(const char*)key.mv_data != 'k');
  CHECK(databases == kRecords + 2);
  mdb_cursor_close(cursor);
#endif
  mdb_txn_reset(txn);
  CALL(mdb_txn_renew(txn));
  MDB_dbi named;
  MUST(mdb_dbi_open(txn, "named", 0, &named));
  walk(txn, named, MDB_NEXT);
#ifdef LMDB_10
  if (CALL(mdb_txn_prepare(txn)) != 0) mdb_txn_abort(txn);  // usually ends it; ENOSYS with a library of 0.9
#else
  say("mdb_txn_prepare(txn) = %d", mdb_txn_commit(txn));
#endif
  mdb_env_close(env);
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  if (strcmp(argv[1], "write") == 0) return write_all(argv[2]);
  return strcmp(argv[1], "read") == 0 ? read_all(argv[2]) : 2;
}
