// The functions of LMDB without their mdb_ prefix: the 56 of 0.9, the 13 that 1.0 adds, and the two that
// py-lmdb adds to its copies.
#pragma once

#include <lmdb.h>

// clang-format off
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

/// Functions that only LMDB 1.0 has.
#define LMDBIO_EACH_10_FUNCTION(X)                                                                           \
  X(env_incr_dump) X(env_incr_dumpfd) X(env_incr_loadfd) X(env_set_pagesize) X(env_set_encrypt)              \
  X(env_set_checksum) X(env_rollback) X(txn_flags) X(txn_prepare) X(cursor_is_db) X(modload) X(modunload)    \
  X(modsetup)
// clang-format on

/// Functions of py-lmdb's copy of LMDB: copies as of a given transaction.  No header declares them.
#define LMDBIO_EACH_PY_FUNCTION(X) X(env_copy3) X(env_copyfd3)

extern "C" {
#if MDB_VERSION_MAJOR < 1  // the header is that of 0.9: declare what that of 1.0 adds
struct MDB_crypto_funcs;
using MDB_enc_func = int(const MDB_val* src, MDB_val* dst, const MDB_val* key, int encdec);
using MDB_sum_func = void(const MDB_val* src, MDB_val* dst, const MDB_val* key);
int mdb_env_incr_dump(MDB_env* env, const char* path, size_t txnid);
int mdb_env_incr_dumpfd(MDB_env* env, mdb_filehandle_t fd, size_t txnid);
int mdb_env_incr_loadfd(MDB_env* env, mdb_filehandle_t fd);
int mdb_env_set_pagesize(MDB_env* env, int size);
int mdb_env_set_encrypt(MDB_env* env, MDB_enc_func* func, const MDB_val* key, unsigned int size);
int mdb_env_set_checksum(MDB_env* env, MDB_sum_func* func, unsigned int size);
int mdb_env_rollback(MDB_env* env, size_t txnid);
int mdb_txn_flags(MDB_txn* txn, unsigned int* flags);
int mdb_txn_prepare(MDB_txn* txn);
int mdb_cursor_is_db(MDB_cursor* cursor);
void* mdb_modload(const char* file, const char* symname, MDB_crypto_funcs** mcf_ptr, char** errmsg);
void mdb_modunload(void* handle);
void mdb_modsetup(MDB_env* env, MDB_crypto_funcs* mcf_ptr, const char* passphrase);
#endif
int mdb_env_copy3(MDB_env* env, const char* path, unsigned int flags, MDB_txn* txn);
int mdb_env_copyfd3(MDB_env* env, mdb_filehandle_t fd, unsigned int flags, MDB_txn* txn);
}
