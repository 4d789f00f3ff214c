// The functions of LMDB 0.9 (lmdb.h: 56) without their mdb_ prefix, and the two that py-lmdb adds to its
// copy.
#pragma once

#include <lmdb.h>

#define LMDBIO_EACH_FUNCTION(X)                                                                              \
  X(version)                                                                                                 \
  X(strerror)                                                                                                \
  X(env_create) X(env_open) X(env_copy) X(env_copyfd) X(env_copy2) X(env_copyfd2) X(env_stat) X(env_info)    \
      X(env_sync) X(env_close) X(env_set_flags) X(env_get_flags) X(env_get_path) X(env_get_fd)               \
          X(env_set_mapsize) X(env_set_maxreaders) X(env_get_maxreaders) X(env_set_maxdbs)                   \
              X(env_get_maxkeysize) X(env_set_userctx) X(env_get_userctx) X(env_set_assert) X(txn_begin)     \
                  X(txn_env) X(txn_id) X(txn_commit) X(txn_abort) X(txn_reset) X(txn_renew) X(dbi_open)      \
                      X(stat) X(dbi_flags) X(dbi_close) X(drop) X(set_compare) X(set_dupsort) X(set_relfunc) \
                          X(set_relctx) X(get) X(put) X(del) X(cursor_open) X(cursor_close) X(cursor_renew)  \
                              X(cursor_txn) X(cursor_dbi) X(cursor_get) X(cursor_put) X(cursor_del)          \
                                  X(cursor_count) X(cmp) X(dcmp) X(reader_list) X(reader_check)

/// Functions of py-lmdb's copy of LMDB: copies as of a given transaction.  No header declares them.
#define LMDBIO_EACH_PY_FUNCTION(X) X(env_copy3) X(env_copyfd3)

extern "C" {
int mdb_env_copy3(MDB_env* env, const char* path, unsigned int flags, MDB_txn* txn);
int mdb_env_copyfd3(MDB_env* env, mdb_filehandle_t fd, unsigned int flags, MDB_txn* txn);
}
