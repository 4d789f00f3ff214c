// A known number of calls: 1001 steps of a cursor (the last fails) and 11 lookups (one fails).
//   counted DIR     DIR exists and is empty
#include "transcript.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  MDB_env* env;
  MDB_txn* txn;
  MDB_dbi dbi;
  MDB_cursor* cursor;
  MDB_val key, data;
  char name[16];
  MUST(mdb_env_create(&env));
  MUST(mdb_env_open(env, argv[1], MDB_NOSYNC, 0644));
  MUST(mdb_txn_begin(env, NULL, 0, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
  for (unsigned i = 0; i < 1000; ++i) {
    snprintf(name, sizeof name, "k%05u", i);
    key = text(name), data = text("0123456789");
    MUST(mdb_put(txn, dbi, &key, &data, 0));
  }
  MUST(mdb_txn_commit(txn));
  mdb_env_close(env);
  MUST(mdb_env_create(&env));
  MUST(mdb_env_open(env, argv[1], MDB_RDONLY, 0644));
  MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
  MUST(mdb_cursor_open(txn, dbi, &cursor));
  for (unsigned i = 0; i < 1000; ++i) MUST(mdb_cursor_get(cursor, &key, &data, MDB_NEXT));
  CHECK(mdb_cursor_get(cursor, &key, &data, MDB_NEXT) == MDB_NOTFOUND);
  for (unsigned i = 0; i < 11; ++i) {
    snprintf(name, sizeof name, "k%05u", i * 100);
    key = text(name);
    CHECK(mdb_get(txn, dbi, &key, &data) == (i < 10 ? 0 : MDB_NOTFOUND));
  }
  mdb_cursor_close(cursor);
  mdb_txn_abort(txn);
  mdb_env_close(env);
  return 0;
}
