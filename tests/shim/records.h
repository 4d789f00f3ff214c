// What forking.c, inherited.c and signals.c share: a database whose every record is known, and readers of it.
#ifndef LMDBIO_TESTS_SHIM_RECORDS_H_
#define LMDBIO_TESTS_SHIM_RECORDS_H_

#include "transcript.h"

// Main: records k00000 to k04999, then the named databases' records.  zdups: the duplicates of one key.
enum { kRecords = 5000, kDups = 3000 };

static void value_of(unsigned i, char* value, size_t* size) {
  *size = 100 + i % 200;
  for (size_t k = 0; k < *size; ++k) value[k] = (char)(i * 7 + k);
}

static int right(unsigned i, const MDB_val* data) {
  char value[400];
  size_t size;
  value_of(i, value, &size);
  return data->mv_size == size && memcmp(data->mv_data, value, size) == 0;
}

static void put_records(MDB_txn* txn, MDB_dbi dbi) {
  for (unsigned i = 0; i < kRecords; ++i) {
    char name[16], value[400];
    size_t size;
    snprintf(name, sizeof name, "k%05u", i);
    value_of(i, value, &size);
    MDB_val key = text(name), data = {size, value};
    MUST(mdb_put(txn, dbi, &key, &data, 0));
  }
}

__attribute__((unused)) static void make(const char* dir) {
  MDB_env* env;
  MDB_txn* txn;
  MDB_dbi dbi, dups, empty;
  MUST(mdb_env_create(&env));
  MUST(mdb_env_set_mapsize(env, 16u << 20));
  MUST(mdb_env_set_maxdbs(env, 4));
  MUST(mdb_env_open(env, dir, MDB_NOSYNC, 0644));
  MUST(mdb_txn_begin(env, NULL, 0, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
  MUST(mdb_dbi_open(txn, "zdups", MDB_CREATE | MDB_DUPSORT, &dups));
  MUST(mdb_dbi_open(txn, "zempty", MDB_CREATE, &empty));
  put_records(txn, dbi);
  for (unsigned i = 0; i < kDups; ++i) {
    char name[16];
    snprintf(name, sizeof name, "d%05u", i);
    MDB_val key = text("key"), data = text(name);
    MUST(mdb_put(txn, dups, &key, &data, 0));
  }
  MUST(mdb_txn_commit(txn));
  mdb_env_close(env);
}

// Steps n times from the record before `from`; says whether all were right.
static int walk_on(MDB_cursor* cursor, unsigned from, unsigned n) {
  MDB_val key, data;
  for (unsigned i = from; i < from + n; ++i)
    if (mdb_cursor_get(cursor, &key, &data, MDB_NEXT) != 0 || !right(i, &data)) return 0;
  return 1;
}

__attribute__((unused)) static int walk_dups(MDB_cursor* cursor, unsigned from, unsigned n) {
  MDB_val key, data;
  for (unsigned i = from; i < from + n; ++i) {
    char name[16];
    snprintf(name, sizeof name, "d%05u", i);
    if (mdb_cursor_get(cursor, &key, &data, i == 0 ? MDB_FIRST : MDB_NEXT_DUP) != 0 || data.mv_size != 6 ||
        memcmp(data.mv_data, name, 6) != 0)
      return 0;
  }
  return 1;
}

static int get_one(MDB_txn* txn, MDB_dbi dbi, unsigned n) {
  const unsigned i = n * 7919 % kRecords;
  char name[16];
  snprintf(name, sizeof name, "k%05u", i);
  MDB_val key = text(name), data;
  return mdb_get(txn, dbi, &key, &data) == 0 && right(i, &data);
}

static int get_some(MDB_txn* txn, MDB_dbi dbi) {
  for (unsigned n = 0; n < 300; ++n)
    if (!get_one(txn, dbi, n)) return 0;
  return 1;
}

struct Reader {
  MDB_env* env;
  MDB_txn* txn;
  MDB_dbi dbi;
  MDB_cursor* cursor;
};

static void begin_reader(struct Reader* r) {
  MUST(mdb_txn_begin(r->env, NULL, MDB_RDONLY, &r->txn));
  MUST(mdb_dbi_open(r->txn, NULL, 0, &r->dbi));
  MUST(mdb_cursor_open(r->txn, r->dbi, &r->cursor));
}

static void end_reader(struct Reader* r) {
  mdb_cursor_close(r->cursor);
  mdb_txn_abort(r->txn);
}

static struct Reader open_reader(const char* dir, unsigned flags) {
  struct Reader r;
  MUST(mdb_env_create(&r.env));
  MUST(mdb_env_set_maxdbs(r.env, 4));
  MUST(mdb_env_open(r.env, dir, MDB_RDONLY | flags, 0644));
  begin_reader(&r);
  return r;
}

static void close_reader(struct Reader* r) {
  end_reader(r);
  mdb_env_close(r->env);
}

#endif
