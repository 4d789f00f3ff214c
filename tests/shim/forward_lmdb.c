// A stand-in for LMDB: all of its entry points, which hand every call to a real one and count it.  Three
// flavours:
//   (none)            to a library that it opens itself; in a module: a program's "own, bundled LMDB"
//   FORWARD_BUNDLED   to functions named bundled_mdb_*: Debian's static library, renamed and linked in
//   FORWARD_INLINED   as that, for a module that clang optimizes as a whole: only calls of these functions
//   are left FORWARD_REENTERS  as the first, but the calls in reenter_lmdb.c go through its own exports, as
//   in an LMDB that
//                     upstream's Makefile builds (not symbolic): with a preload they come to LMDBIO with
//                     stock handles
#include "forward_lmdb.h"

#include <dlfcn.h>
#include <lmdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static atomic_int calls;

int forward_lmdb_calls(void) { return atomic_load(&calls); }

#ifdef FORWARD_INLINED
#define KEPT __attribute__((noinline))
KEPT int mdb_env_create(MDB_env** env);
KEPT int mdb_env_open(MDB_env* env, const char* path, unsigned int flags, mdb_mode_t mode);
KEPT int mdb_txn_begin(MDB_env* env, MDB_txn* parent, unsigned int flags, MDB_txn** txn);
KEPT int mdb_get(MDB_txn* txn, MDB_dbi dbi, MDB_val* key, MDB_val* data);
KEPT int mdb_cursor_get(MDB_cursor* cursor, MDB_val* key, MDB_val* data, MDB_cursor_op op);
#ifdef FORWARD_MIDL  // here they show it that LMDB's own files call each other by
KEPT void mdb_txn_abort(MDB_txn* txn);
void* mdb_midl_alloc(int num) { return malloc((size_t)num); }
void mdb_midl_free(void* ids) { free(ids); }
#endif
#endif

#ifdef FORWARD_BUNDLED

#define FORWARD(type, name, parameters, arguments) \
  type bundled_##name parameters;                  \
  type name parameters {                           \
    atomic_fetch_add(&calls, 1);                   \
    return bundled_##name arguments;               \
  }
#define FORWARD_VOID(name, parameters, arguments) \
  void bundled_##name parameters;                 \
  void name parameters {                          \
    atomic_fetch_add(&calls, 1);                  \
    bundled_##name arguments;                     \
  }

#else

static void* real_library;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_real(void) {
  real_library = dlopen(FORWARD_LMDB_TO, RTLD_NOW | RTLD_LOCAL);
  if (!real_library) {
    fprintf(stderr, "forward_lmdb: %s\n", dlerror());
    abort();
  }
}

void* forward_lmdb_real(const char* name) {
  pthread_once(&once, open_real);
  atomic_fetch_add(&calls, 1);
  void* const f = dlsym(real_library, name);
  if (!f) abort();
  return f;
}

#define FORWARD(type, name, parameters, arguments) \
  type name parameters {                           \
    union {                                        \
      void* object;                                \
      type(*function) parameters;                  \
    } f = {forward_lmdb_real(#name)};              \
    return f.function arguments;                   \
  }
#define FORWARD_VOID(name, parameters, arguments) \
  void name parameters {                          \
    union {                                       \
      void* object;                               \
      void(*function) parameters;                 \
    } f = {forward_lmdb_real(#name)};             \
    f.function arguments;                         \
  }

#endif

// clang-format off
FORWARD(char*, mdb_strerror, (int err), (err))
FORWARD(int, mdb_env_create, (MDB_env **env), (env))
FORWARD(int, mdb_env_sync, (MDB_env* env, int force), (env, force))
FORWARD_VOID(mdb_env_close, (MDB_env* env), (env))
FORWARD(int, mdb_env_set_flags, (MDB_env* env, unsigned int flags, int onoff), (env, flags, onoff))
FORWARD(int, mdb_env_get_flags, (MDB_env* env, unsigned int* flags), (env, flags))
FORWARD(int, mdb_env_get_path, (MDB_env* env, const char **path), (env, path))
FORWARD(int, mdb_env_set_mapsize, (MDB_env* env, size_t size), (env, size))
FORWARD(int, mdb_env_set_maxreaders, (MDB_env* env, unsigned int readers), (env, readers))
FORWARD(int, mdb_env_get_maxreaders, (MDB_env* env, unsigned int* readers), (env, readers))
FORWARD(int, mdb_env_set_maxdbs, (MDB_env* env, MDB_dbi dbs), (env, dbs))
FORWARD(int, mdb_env_get_maxkeysize, (MDB_env* env), (env))
FORWARD(int, mdb_env_set_userctx, (MDB_env* env, void* ctx), (env, ctx))
FORWARD(void*, mdb_env_get_userctx, (MDB_env* env), (env))
FORWARD(int, mdb_env_set_assert, (MDB_env* env, MDB_assert_func* func), (env, func))
FORWARD(int, mdb_txn_begin, (MDB_env* env, MDB_txn* parent, unsigned int flags, MDB_txn **txn), (env, parent, flags, txn))
FORWARD(MDB_env*, mdb_txn_env, (MDB_txn* txn), (txn))
FORWARD_VOID(mdb_txn_abort, (MDB_txn* txn), (txn))
FORWARD_VOID(mdb_txn_reset, (MDB_txn* txn), (txn))
FORWARD(int, mdb_txn_renew, (MDB_txn* txn), (txn))
FORWARD(int, mdb_dbi_open, (MDB_txn* txn, const char* name, unsigned int flags, MDB_dbi* dbi), (txn, name, flags, dbi))
FORWARD(int, mdb_stat, (MDB_txn* txn, MDB_dbi dbi, MDB_stat* stat), (txn, dbi, stat))
FORWARD(int, mdb_dbi_flags, (MDB_txn* txn, MDB_dbi dbi, unsigned int* flags), (txn, dbi, flags))
FORWARD_VOID(mdb_dbi_close, (MDB_env* env, MDB_dbi dbi), (env, dbi))
FORWARD(int, mdb_set_compare, (MDB_txn* txn, MDB_dbi dbi, MDB_cmp_func* cmp), (txn, dbi, cmp))
FORWARD(int, mdb_set_dupsort, (MDB_txn* txn, MDB_dbi dbi, MDB_cmp_func* cmp), (txn, dbi, cmp))
FORWARD(int, mdb_set_relfunc, (MDB_txn* txn, MDB_dbi dbi, MDB_rel_func* rel), (txn, dbi, rel))
FORWARD(int, mdb_set_relctx, (MDB_txn* txn, MDB_dbi dbi, void* ctx), (txn, dbi, ctx))
FORWARD(int, mdb_get, (MDB_txn* txn, MDB_dbi dbi, MDB_val* key, MDB_val* data), (txn, dbi, key, data))
FORWARD(int, mdb_del, (MDB_txn* txn, MDB_dbi dbi, MDB_val* key, MDB_val* data), (txn, dbi, key, data))
FORWARD(int, mdb_cursor_open, (MDB_txn* txn, MDB_dbi dbi, MDB_cursor **cursor), (txn, dbi, cursor))
FORWARD_VOID(mdb_cursor_close, (MDB_cursor* cursor), (cursor))
FORWARD(int, mdb_cursor_renew, (MDB_txn* txn, MDB_cursor* cursor), (txn, cursor))
FORWARD(MDB_txn*, mdb_cursor_txn, (MDB_cursor* cursor), (cursor))
FORWARD(MDB_dbi, mdb_cursor_dbi, (MDB_cursor* cursor), (cursor))
FORWARD(int, mdb_cursor_get, (MDB_cursor* cursor, MDB_val* key, MDB_val* data, MDB_cursor_op op), (cursor, key, data, op))
FORWARD(int, mdb_cursor_put, (MDB_cursor* cursor, MDB_val* key, MDB_val* data, unsigned int flags), (cursor, key, data, flags))
FORWARD(int, mdb_cursor_del, (MDB_cursor* cursor, unsigned int flags), (cursor, flags))
FORWARD(int, mdb_cursor_count, (MDB_cursor* cursor, size_t* countp), (cursor, countp))
FORWARD(int, mdb_cmp, (MDB_txn* txn, MDB_dbi dbi, const MDB_val* a, const MDB_val* b), (txn, dbi, a, b))
FORWARD(int, mdb_dcmp, (MDB_txn* txn, MDB_dbi dbi, const MDB_val* a, const MDB_val* b), (txn, dbi, a, b))
FORWARD(int, mdb_reader_list, (MDB_env* env, MDB_msg_func* func, void* ctx), (env, func, ctx))
FORWARD(int, mdb_reader_check, (MDB_env* env, int* dead), (env, dead))
#ifndef FORWARD_REENTERS
FORWARD(int, mdb_env_copy, (MDB_env* env, const char* path), (env, path))
FORWARD(int, mdb_env_copyfd, (MDB_env* env, mdb_filehandle_t fd), (env, fd))
FORWARD(int, mdb_env_copy2, (MDB_env* env, const char* path, unsigned int flags), (env, path, flags))
FORWARD(int, mdb_env_copyfd2, (MDB_env* env, mdb_filehandle_t fd, unsigned int flags), (env, fd, flags))
FORWARD(int, mdb_txn_commit, (MDB_txn* txn), (txn))
FORWARD(int, mdb_drop, (MDB_txn* txn, MDB_dbi dbi, int del), (txn, dbi, del))
FORWARD(int, mdb_put, (MDB_txn* txn, MDB_dbi dbi, MDB_val* key, MDB_val* data, unsigned int flags), (txn, dbi, key, data, flags))
#endif
#ifndef FORWARD_10  // stand_in_10.c has these
FORWARD(int, mdb_env_stat, (MDB_env* env, MDB_stat* stat), (env, stat))
FORWARD(int, mdb_env_info, (MDB_env* env, MDB_envinfo* stat), (env, stat))
FORWARD(int, mdb_env_get_fd, (MDB_env* env, mdb_filehandle_t* fd), (env, fd))
FORWARD(size_t, mdb_txn_id, (MDB_txn* txn), (txn))
FORWARD(char*, mdb_version, (int* major, int* minor, int* patch), (major, minor, patch))
FORWARD(int, mdb_env_open, (MDB_env* env, const char* path, unsigned int flags, mdb_mode_t mode), (env, path, flags, mode))
#endif
