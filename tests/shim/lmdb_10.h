// What the header of LMDB 1.0 declares beyond that of 0.9, as far as the tests use it.
#ifndef LMDBIO_TESTS_SHIM_LMDB_10_H_
#define LMDBIO_TESTS_SHIM_LMDB_10_H_

#include <lmdb.h>

#if MDB_VERSION_MAJOR < 1
#define MDB_TXN_PENDING (-30775)
#define MDB_IS_READONLY (-30770)
int mdb_env_set_pagesize(MDB_env* env, int size);
int mdb_env_rollback(MDB_env* env, size_t txnid);
int mdb_txn_flags(MDB_txn* txn, unsigned int* flags);
int mdb_txn_prepare(MDB_txn* txn);
int mdb_cursor_is_db(MDB_cursor* cursor);
#endif

#endif
