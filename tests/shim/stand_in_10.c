// The part of a stand-in for LMDB 1.0 that differs from 0.9 (forward_lmdb.c is the rest, over a real 0.9). It
// refuses to open an environment read-only, as 1.0 refuses files of 0.9.  The functions that only 1.0 has use
// their handles, which must be the real library's, and answer what no engine would.
#include <errno.h>
#include <stddef.h>

#include "forward_lmdb.h"
#include "lmdb_10.h"

#define REAL(type, name, parameters) \
  union {                            \
    void* object;                    \
    type(*function) parameters;      \
  } name = {forward_lmdb_real("mdb_" #name)}

char* mdb_version(int* major, int* minor, int* patch) {
  static char text[] = "LMDB 1.0.1: (a stand-in)";
  if (major) *major = 1;
  if (minor) *minor = 0;
  if (patch) *patch = 1;
  return text;
}

int mdb_env_open(MDB_env* env, const char* path, unsigned int flags, mdb_mode_t mode) {
  if (flags & MDB_RDONLY) return MDB_VERSION_MISMATCH;
  REAL(int, env_open, (MDB_env*, const char*, unsigned, mdb_mode_t));
  return env_open.function(env, path, flags, mode);
}

int mdb_env_set_pagesize(MDB_env* env, int size) {
  REAL(int, env_get_maxkeysize, (MDB_env*));
  return env_get_maxkeysize.function(env) == 511 && size == 4096 ? 0 : EINVAL;
}

int mdb_env_rollback(MDB_env* env, size_t txnid) {
  return mdb_env_set_pagesize(env, 4096) == 0 ? 1000 + (int)txnid : EINVAL;
}

int mdb_txn_flags(MDB_txn* txn, unsigned int* flags) {
  REAL(size_t, txn_id, (MDB_txn*));
  *flags = 5000 + (unsigned)txn_id.function(txn);
  return 0;
}

int mdb_txn_prepare(MDB_txn* txn) {
  static MDB_txn* prepared;
  if (txn == prepared) return MDB_TXN_PENDING;
  prepared = txn;
  return 0;
}

int mdb_cursor_is_db(MDB_cursor* cursor) {
  REAL(MDB_dbi, cursor_dbi, (MDB_cursor*));
  return 7000 + (int)cursor_dbi.function(cursor);
}
