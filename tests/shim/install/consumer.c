/* Strict C: the header is C, and the first library on the link line serves the reads. */
#include <lmdb.h>
#include <lmdbio/lmdbio.h>
#include <stdio.h>

int main(int argc, char** argv) {
  MDB_env* env;
  MDB_txn* txn;
  MDB_dbi dbi;
  MDB_val key = {5, (void*)"hello"}, data = {5, (void*)"world"};
  int rc;
  if (argc != 2) return 2;
  if ((rc = mdb_env_create(&env)) || (rc = mdb_env_open(env, argv[1], 0, 0644)) ||
      (rc = mdb_txn_begin(env, NULL, 0, &txn)) || (rc = mdb_dbi_open(txn, NULL, 0, &dbi)) ||
      (rc = mdb_put(txn, dbi, &key, &data, 0)) || (rc = mdb_txn_commit(txn)))
    return 1;
  mdb_env_close(env);
  data.mv_data = NULL, data.mv_size = 0;
  if ((rc = mdb_env_create(&env)) || (rc = mdb_env_open(env, argv[1], MDB_RDONLY, 0644)) ||
      (rc = mdb_txn_begin(env, NULL, MDB_RDONLY, &txn)) || (rc = mdb_dbi_open(txn, NULL, 0, &dbi)) ||
      (rc = mdb_get(txn, dbi, &key, &data)))
    return 1;
  printf("%s %.*s\n", lmdbio_version(), (int)data.mv_size, (const char*)data.mv_data);
  mdb_txn_abort(txn);
  mdb_env_close(env);
  return 0;
}
