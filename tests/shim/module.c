// A module that a program opens with dlopen(RTLD_LOCAL), as Python opens its extensions.  Linked three ways:
// with a real LMDB bundled (Debian's static library), with the stand-in bundled, and to the system's library.
#include "module.h"

#include <unistd.h>

#include "forward_lmdb.h"
#include "transcript.h"

#ifdef MODULE_BOTH
char* mdb09_version(int* major, int* minor, int* patch);
int mdb_env_rollback(MDB_env* env, size_t txnid);
#endif

static MDB_env* env;
static MDB_txn* txn;
static MDB_cursor* cursor;

#ifdef FORWARD_MIDL
void* mdb_midl_alloc(int num);
void mdb_midl_free(void* ids);
#endif

static int make(const char* dir) {
#ifdef FORWARD_MIDL
  mdb_midl_free(mdb_midl_alloc(16));
#endif
  MDB_env* w;
  MDB_txn* t;
  MDB_dbi dbi;
  MUST(mdb_env_create(&w));
#ifdef MODULE_BOTH
  // The stand-in calls a function of 1.0 by the module's name for it, with a handle of its own.
  CHECK(mdb_env_rollback(w, 1) == 1001);
#endif
  MUST(mdb_env_set_mapsize(w, 8u << 20));
  MUST(mdb_env_open(w, dir, MDB_NOSYNC, 0644));
  MUST(mdb_txn_begin(w, NULL, 0, &t));
  MUST(mdb_dbi_open(t, NULL, 0, &dbi));
  for (unsigned i = 0; i < 1000; ++i) {
    char name[16], value[3000];
    snprintf(name, sizeof name, "k%05u", i);
    memset(value, (int)('a' + i % 26), sizeof value);
    MDB_val key = text(name), data = {i % 10 ? 30 : sizeof value, value};
    MUST(mdb_put(t, dbi, &key, &data, 0));
  }
  MUST(mdb_txn_commit(t));
  // An upstream build calls its own exports here, and a preload sees them.
  char path[4200];
  snprintf(path, sizeof path, "%s/copy", dir);
  CALL(mdb_env_copy2(w, path, MDB_CP_COMPACT));  // no such directory
  mdb_env_close(w);
  return 0;
}

int module_open(const char* dir) {
  MDB_dbi dbi;
  make(dir);
  MUST(mdb_env_create(&env));
  CHECK(mdb_env_set_userctx(env, &env) == 0 && mdb_env_get_userctx(env) == &env);
  MUST(mdb_env_open(env, dir, MDB_RDONLY, 0644));
  MUST(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
  CHECK(mdb_txn_env(txn) == env);
  MUST(mdb_dbi_open(txn, NULL, 0, &dbi));
  MUST(mdb_cursor_open(txn, dbi, &cursor));
  CHECK(mdb_cursor_txn(cursor) == txn);
  return 0;
}

#ifdef MODULE_TABLE
static const struct { int (*get)(MDB_txn*, MDB_dbi, MDB_val*, MDB_val*); } volatile table = {mdb_get};
#define GET table.get
#else
#define GET mdb_get
#endif

int module_read(int n) {
  MDB_val key, data;
  uint64_t sum = 0;
  int rc = 0, i = 0;
  for (; i < n && (rc = mdb_cursor_get(cursor, &key, &data, MDB_NEXT)) == 0; ++i)
    sum = sum * 31 + hash_bytes(key.mv_data, key.mv_size) + hash_bytes(data.mv_data, data.mv_size);
  say("read %d, sum %016llx, last %d", i, (unsigned long long)sum, rc);
  for (unsigned k = 0; k < 50; ++k) {
    char name[16];
    snprintf(name, sizeof name, "k%05u", k * 37 % 1100);
    key = text(name), data = untouched();
    printf("get %s = %d", name, GET(txn, 1, &key, &data));
    show("data", &data);
    putchar('\n');
  }
  MDB_stat stat;
  CALL(mdb_stat(txn, 1, &stat));
  show_stat("main", &stat);
  return rc;
}

void module_close(void) {
  mdb_cursor_close(cursor);
  mdb_txn_abort(txn);
  mdb_env_close(env);
  // Calls that have no handle: which library answers is told by the caller alone.
  say("%s, %s", mdb_version(NULL, NULL, NULL) ? "version" : "none", mdb_strerror(MDB_NOTFOUND));
  int major, minor;
  mdb_version(&major, &minor, NULL);
  say("# release %d.%d", major, minor);
#ifdef MODULE_BOTH
  mdb09_version(&major, &minor, NULL);
  say("# release %d.%d", major, minor);
#endif
}

#ifdef MODULE_COUNTS
int module_own_calls(void) { return forward_lmdb_calls(); }
#else
int module_own_calls(void) { return -1; }
#endif
