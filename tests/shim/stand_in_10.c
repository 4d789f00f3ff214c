// The part of a stand-in for LMDB 1.0 that differs from 0.9 (forward_lmdb.c is the rest, over a real 0.9). It
// refuses to open an environment of 0.9 read-only, as 1.0 does.  An environment DIR of 1.0 has a twin,
// DIR.09, with the same records in the format of 0.9.  The stand-in opens the twin, which has the locks, and
// answers with the descriptor and the meta page of DIR/data.mdb.  Its pages are for the engine only: DIR.09
// has other numbers of pages.  The functions that only 1.0 has use their handles, which must be the real
// library's, and answer what no engine would.
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

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

// The newer meta page of a file of 1.0, as tests/support/format_10.h writes it, behind the page header.
typedef struct {
  uint32_t magic, version;
  uint64_t address, map_size;
  uint32_t page_size, free_flags;
  uint64_t free_counts[5];
  uint32_t pad;
  uint16_t flags, depth;
  uint64_t branch_pages, leaf_pages, overflow_pages, entries, root, last_page, txnid;
} Meta;

// The last environment that was opened by its twin.  It is not closed.
static struct {
  MDB_env* env;
  int fd;
  Meta meta;
} twin;

static int read_meta(int fd, off_t page, Meta* meta) {
  return pread(fd, meta, sizeof *meta, page + 24) == (ssize_t)sizeof *meta && meta->magic == 0xBEEFC0DE &&
         meta->version == 3;
}

static int open_twin(MDB_env* env, const char* path, unsigned flags, mdb_mode_t mode) {
  char name[4096];
  Meta first;
  snprintf(name, sizeof name, "%s/data.mdb", path);
  const int fd = open(name, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || !read_meta(fd, 0, &first) || !read_meta(fd, first.page_size, &twin.meta)) {
    if (fd >= 0) close(fd);
    return MDB_VERSION_MISMATCH;
  }
  if (first.txnid > twin.meta.txnid) twin.meta = first;
  twin.fd = fd;
  snprintf(name, sizeof name, "%s.09", path);
  REAL(int, env_open, (MDB_env*, const char*, unsigned, mdb_mode_t));
  const int rc = env_open.function(env, name, flags, mode);
  if (rc == 0) twin.env = env;
  return rc;
}

int mdb_env_open(MDB_env* env, const char* path, unsigned int flags, mdb_mode_t mode) {
  if (flags & MDB_RDONLY) return open_twin(env, path, flags, mode);
  REAL(int, env_open, (MDB_env*, const char*, unsigned, mdb_mode_t));
  return env_open.function(env, path, flags, mode);
}

int mdb_env_get_fd(MDB_env* env, mdb_filehandle_t* fd) {
  REAL(int, env_get_fd, (MDB_env*, mdb_filehandle_t*));
  const int rc = env_get_fd.function(env, fd);
  if (rc == 0 && env == twin.env) *fd = twin.fd;
  return rc;
}

int mdb_env_stat(MDB_env* env, MDB_stat* stat) {
  REAL(int, env_stat, (MDB_env*, MDB_stat*));
  const int rc = env_stat.function(env, stat);
  if (rc == 0 && env == twin.env) stat->ms_psize = twin.meta.page_size;
  return rc;
}

int mdb_env_info(MDB_env* env, MDB_envinfo* info) {
  REAL(int, env_info, (MDB_env*, MDB_envinfo*));
  const int rc = env_info.function(env, info);
  if (rc == 0 && env == twin.env) {
    info->me_last_pgno = twin.meta.last_page;
    info->me_last_txnid = twin.meta.txnid;
  }
  return rc;
}

size_t mdb_txn_id(MDB_txn* txn) {
  REAL(size_t, txn_id, (MDB_txn*));
  REAL(MDB_env*, txn_env, (MDB_txn*));
  const size_t id = txn_id.function(txn);
  return id != 0 && txn_env.function(txn) == twin.env ? twin.meta.txnid : id;
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
