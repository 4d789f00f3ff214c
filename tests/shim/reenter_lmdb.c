// The part of a stand-in LMDB that calls its own exports, where LMDB does so too.  These are calls to another
// translation unit of a library linked without -Bsymbolic: they go through the PLT, to whoever comes first in
// the program.  The handles are the real LMDB's.
#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "forward_lmdb.h"

#define REAL(type, name, parameters) \
  union {                            \
    void* object;                    \
    type(*function) parameters;      \
  } name = {forward_lmdb_real("mdb_" #name)}

int mdb_put(MDB_txn* txn, MDB_dbi dbi, MDB_val* key, MDB_val* data, unsigned int flags) {
  MDB_cursor* cursor;
  if (!txn || !key || !data) return EINVAL;
  int rc = mdb_cursor_open(txn, dbi, &cursor);
  if (rc != 0) return rc;
  rc = mdb_cursor_put(cursor, key, data, flags);
  mdb_cursor_close(cursor);
  return rc;
}

int mdb_drop(MDB_txn* txn, MDB_dbi dbi, int del) {
  MDB_cursor* cursor;
  if (mdb_cursor_open(txn, dbi, &cursor) == 0) {
    MDB_val key, data;
    if (mdb_cursor_get(cursor, &key, &data, MDB_FIRST) == 0 && mdb_cursor_txn(cursor) != txn)
      return MDB_PANIC;
    mdb_cursor_close(cursor);
  }
  REAL(int, drop, (MDB_txn*, MDB_dbi, int));
  return drop.function(txn, dbi, del);
}

// In a child of its own at first, which commits and aborts through the exports as LMDB does with nested ones.
int mdb_txn_commit(MDB_txn* txn) {
  MDB_txn* child;
  MDB_env* const env = txn ? mdb_txn_env(txn) : NULL;
  unsigned flags = 0;
  if (env) mdb_env_get_flags(env, &flags);
  if (env && !(flags & (MDB_RDONLY | MDB_WRITEMAP)) && mdb_txn_begin(env, txn, 0, &child) == 0)
    mdb_txn_abort(child);
  REAL(int, txn_commit, (MDB_txn*));
  const int rc = txn_commit.function(txn);
  if (rc == 0 && env && !(flags & MDB_RDONLY)) mdb_env_sync(env, 0);
  return rc;
}

int mdb_env_copyfd2(MDB_env* env, mdb_filehandle_t fd, unsigned int flags) {
  MDB_txn* txn;
  if (mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) == 0) mdb_txn_abort(txn);
  REAL(int, env_copyfd2, (MDB_env*, mdb_filehandle_t, unsigned));
  return env_copyfd2.function(env, fd, flags);
}

int mdb_env_copyfd(MDB_env* env, mdb_filehandle_t fd) { return mdb_env_copyfd2(env, fd, 0); }

int mdb_env_copy2(MDB_env* env, const char* path, unsigned int flags) {
  char name[4200];
  struct stat st;
  const int is_dir = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
  if (snprintf(name, sizeof name, is_dir ? "%s/data.mdb" : "%s", path) >= (int)sizeof name)
    return ENAMETOOLONG;
  const int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return errno;
  const int rc = mdb_env_copyfd2(env, fd, flags);
  close(fd);
  return rc;
}

int mdb_env_copy(MDB_env* env, const char* path) { return mdb_env_copy2(env, path, 0); }
