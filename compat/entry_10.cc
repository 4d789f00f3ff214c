// The functions that only LMDB 1.0 has, and the names mdb10_* of all functions of 1.0.
#include <cerrno>

#include "compat/abi.h"
#include "compat/companion.h"

using namespace lmdbio::compat;

namespace {

/// Returns whether the first argument of a call is a handle of ours, of any type.
template <class H, class... Rest>
bool ours(const H* handle, const Rest&...) noexcept {
  return handle != nullptr && tag_of(handle) >> 8 == kEnvTag >> 8;
}

}  // namespace

extern "C" {

/// Calls the real library's function for the environment `env`, and yields its result.
#define LMDBIO_ENV_CALL(name, ...)                                           \
  EnvHandle* const e = as<EnvHandle>(env);                                   \
  if (e == nullptr) return LMDBIO_FORWARD(name, ENOSYS, env, ##__VA_ARGS__); \
  if (e->stock->name == nullptr) return ENOSYS;                              \
  int rc = 0;                                                                \
  if (MDB_env* const real = companion(*e, rc); real != nullptr) rc = e->stock->name(real, ##__VA_ARGS__)

LMDBIO_ABI int mdb_env_set_pagesize(MDB_env* env, int size) {
  LMDBIO_ENV_CALL(env_set_pagesize, size);
  if (rc == 0) e->setup.page_bytes = size;
  return rc;
}

LMDBIO_ABI int mdb_env_set_encrypt(MDB_env* env, MDB_enc_func* func, const MDB_val* key, unsigned int size) {
  LMDBIO_ENV_CALL(env_set_encrypt, func, key, size);
  if (rc == 0) e->setup.own_pages = true;
  return rc;
}

LMDBIO_ABI int mdb_env_set_checksum(MDB_env* env, MDB_sum_func* func, unsigned int size) {
  LMDBIO_ENV_CALL(env_set_checksum, func, size);
  if (rc == 0) e->setup.own_pages = true;
  return rc;
}

LMDBIO_ABI int mdb_env_rollback(MDB_env* env, size_t txnid) {
  LMDBIO_ENV_CALL(env_rollback, txnid);
  return rc;
}

LMDBIO_ABI int mdb_txn_flags(MDB_txn* txn, unsigned int* flags) {
  if (as<ReadTxn>(txn) != nullptr) {
    *flags = MDB_RDONLY;
    return 0;
  }
  if (const ForwardTxn* const t = as<ForwardTxn>(txn); t != nullptr)
    return t->env->stock->txn_flags != nullptr ? t->env->stock->txn_flags(t->real, flags) : ENOSYS;
  return LMDBIO_FORWARD(txn_flags, EINVAL, txn, flags);
}

LMDBIO_ABI int mdb_cursor_is_db(MDB_cursor* cursor) {
  if (ReadCursor* const c = as<ReadCursor>(cursor); c != nullptr) return c->cursor.at_named_database();
  if (const ForwardCursor* const c = as<ForwardCursor>(cursor); c != nullptr)
    return c->stock->cursor_is_db != nullptr ? c->stock->cursor_is_db(c->real) : 0;
  return LMDBIO_FORWARD(cursor_is_db, 0, cursor);
}

// Modules with encryption functions.

LMDBIO_ABI void mdb_modsetup(MDB_env* env, MDB_crypto_funcs* mcf_ptr, const char* passphrase) {
  EnvHandle* const e = as<EnvHandle>(env);
  if (e == nullptr) return LMDBIO_FORWARD(modsetup, void(), env, mcf_ptr, passphrase);
  MDB_env* const real = e->passed();
  if (e->stock->modsetup == nullptr || real == nullptr) return;
  e->setup.own_pages = true;
  e->stock->modsetup(real, mcf_ptr, passphrase);
}

LMDBIO_ABI void* mdb_modload(const char* file, const char* symname, MDB_crypto_funcs** mcf_ptr,
                             char** errmsg) {
  const Stock* const real = caller_at(__builtin_return_address(0)).stock;
  if (real != nullptr && real->modload != nullptr) return real->modload(file, symname, mcf_ptr, errmsg);
  *errmsg = const_cast<char*>("LMDB 1.0 was not found");
  return nullptr;
}

LMDBIO_ABI void mdb_modunload(void* handle) {
  const Stock* const real = caller_at(__builtin_return_address(0)).stock;
  if (real != nullptr && real->modunload != nullptr) real->modunload(handle);
}

// In a module that contains 0.9 and 1.0, the functions of 1.0 are named mdb10_*.  For LMDBIO's handles, both
// names are the same function.  But such a module may also pass a handle of one of its own libraries.  The
// name of the called function is the only sign of which one.

#define LMDBIO_10(type, name, absent, parameters, arguments)                            \
  LMDBIO_ABI type mdb10_##name parameters {                                             \
    if (ours arguments) [[likely]]                                                      \
      return mdb_##name arguments;                                                      \
    const Stock* const real = stock_of_handle(__builtin_return_address(0), Names::v10); \
    return real != nullptr && real->name != nullptr ? real->name arguments : absent;    \
  }

// clang-format off
LMDBIO_10(int, env_open, ENOSYS, (MDB_env* env, const char* path, unsigned flags, mdb_mode_t mode), (env, path, flags, mode))
LMDBIO_10(int, env_copy, ENOSYS, (MDB_env* env, const char* path), (env, path))
LMDBIO_10(int, env_copyfd, ENOSYS, (MDB_env* env, mdb_filehandle_t fd), (env, fd))
LMDBIO_10(int, env_copy2, ENOSYS, (MDB_env* env, const char* path, unsigned flags), (env, path, flags))
LMDBIO_10(int, env_copyfd2, ENOSYS, (MDB_env* env, mdb_filehandle_t fd, unsigned flags), (env, fd, flags))
LMDBIO_10(int, env_copy3, ENOSYS, (MDB_env* env, const char* path, unsigned flags, MDB_txn* txn), (env, path, flags, txn))
LMDBIO_10(int, env_copyfd3, ENOSYS, (MDB_env* env, mdb_filehandle_t fd, unsigned flags, MDB_txn* txn), (env, fd, flags, txn))
LMDBIO_10(int, env_incr_dump, ENOSYS, (MDB_env* env, const char* path, size_t txnid), (env, path, txnid))
LMDBIO_10(int, env_incr_dumpfd, ENOSYS, (MDB_env* env, mdb_filehandle_t fd, size_t txnid), (env, fd, txnid))
LMDBIO_10(int, env_incr_loadfd, ENOSYS, (MDB_env* env, mdb_filehandle_t fd), (env, fd))
LMDBIO_10(int, env_stat, EINVAL, (MDB_env* env, MDB_stat* stat), (env, stat))
LMDBIO_10(int, env_info, EINVAL, (MDB_env* env, MDB_envinfo* info), (env, info))
LMDBIO_10(int, env_sync, ENOSYS, (MDB_env* env, int force), (env, force))
LMDBIO_10(void, env_close, void(), (MDB_env* env), (env))
LMDBIO_10(int, env_set_flags, ENOSYS, (MDB_env* env, unsigned flags, int onoff), (env, flags, onoff))
LMDBIO_10(int, env_get_flags, EINVAL, (MDB_env* env, unsigned* flags), (env, flags))
LMDBIO_10(int, env_get_path, EINVAL, (MDB_env* env, const char** path), (env, path))
LMDBIO_10(int, env_get_fd, EINVAL, (MDB_env* env, mdb_filehandle_t* fd), (env, fd))
LMDBIO_10(int, env_set_mapsize, ENOSYS, (MDB_env* env, size_t size), (env, size))
LMDBIO_10(int, env_set_pagesize, ENOSYS, (MDB_env* env, int size), (env, size))
LMDBIO_10(int, env_set_maxreaders, ENOSYS, (MDB_env* env, unsigned readers), (env, readers))
LMDBIO_10(int, env_get_maxreaders, EINVAL, (MDB_env* env, unsigned* readers), (env, readers))
LMDBIO_10(int, env_set_maxdbs, ENOSYS, (MDB_env* env, MDB_dbi dbs), (env, dbs))
LMDBIO_10(int, env_get_maxkeysize, 0, (MDB_env* env), (env))
LMDBIO_10(int, env_set_userctx, EINVAL, (MDB_env* env, void* ctx), (env, ctx))
LMDBIO_10(void*, env_get_userctx, nullptr, (MDB_env* env), (env))
LMDBIO_10(int, env_set_assert, EINVAL, (MDB_env* env, MDB_assert_func* func), (env, func))
LMDBIO_10(int, env_set_encrypt, ENOSYS, (MDB_env* env, MDB_enc_func* func, const MDB_val* key, unsigned size), (env, func, key, size))
LMDBIO_10(int, env_set_checksum, ENOSYS, (MDB_env* env, MDB_sum_func* func, unsigned size), (env, func, size))
LMDBIO_10(int, env_rollback, ENOSYS, (MDB_env* env, size_t txnid), (env, txnid))
LMDBIO_10(int, txn_begin, ENOSYS, (MDB_env* env, MDB_txn* parent, unsigned flags, MDB_txn** txn), (env, parent, flags, txn))
LMDBIO_10(MDB_env*, txn_env, nullptr, (MDB_txn* txn), (txn))
LMDBIO_10(size_t, txn_id, 0, (MDB_txn* txn), (txn))
LMDBIO_10(int, txn_flags, EINVAL, (MDB_txn* txn, unsigned* flags), (txn, flags))
LMDBIO_10(int, txn_prepare, EINVAL, (MDB_txn* txn), (txn))
LMDBIO_10(int, txn_commit, EINVAL, (MDB_txn* txn), (txn))
LMDBIO_10(void, txn_abort, void(), (MDB_txn* txn), (txn))
LMDBIO_10(void, txn_reset, void(), (MDB_txn* txn), (txn))
LMDBIO_10(int, txn_renew, EINVAL, (MDB_txn* txn), (txn))
LMDBIO_10(int, dbi_open, ENOSYS, (MDB_txn* txn, const char* name, unsigned flags, MDB_dbi* dbi), (txn, name, flags, dbi))
LMDBIO_10(int, stat, EINVAL, (MDB_txn* txn, MDB_dbi dbi, MDB_stat* stat), (txn, dbi, stat))
LMDBIO_10(int, dbi_flags, EINVAL, (MDB_txn* txn, MDB_dbi dbi, unsigned* flags), (txn, dbi, flags))
LMDBIO_10(void, dbi_close, void(), (MDB_env* env, MDB_dbi dbi), (env, dbi))
LMDBIO_10(int, drop, EINVAL, (MDB_txn* txn, MDB_dbi dbi, int del), (txn, dbi, del))
LMDBIO_10(int, set_compare, EINVAL, (MDB_txn* txn, MDB_dbi dbi, MDB_cmp_func* cmp), (txn, dbi, cmp))
LMDBIO_10(int, set_dupsort, EINVAL, (MDB_txn* txn, MDB_dbi dbi, MDB_cmp_func* cmp), (txn, dbi, cmp))
LMDBIO_10(int, set_relfunc, EINVAL, (MDB_txn* txn, MDB_dbi dbi, MDB_rel_func* rel), (txn, dbi, rel))
LMDBIO_10(int, set_relctx, EINVAL, (MDB_txn* txn, MDB_dbi dbi, void* ctx), (txn, dbi, ctx))
LMDBIO_10(int, get, EINVAL, (MDB_txn* txn, MDB_dbi dbi, MDB_val* key, MDB_val* data), (txn, dbi, key, data))
LMDBIO_10(int, put, EINVAL, (MDB_txn* txn, MDB_dbi dbi, MDB_val* key, MDB_val* data, unsigned flags), (txn, dbi, key, data, flags))
LMDBIO_10(int, del, EINVAL, (MDB_txn* txn, MDB_dbi dbi, MDB_val* key, MDB_val* data), (txn, dbi, key, data))
LMDBIO_10(int, cursor_open, EINVAL, (MDB_txn* txn, MDB_dbi dbi, MDB_cursor** cursor), (txn, dbi, cursor))
LMDBIO_10(void, cursor_close, void(), (MDB_cursor* cursor), (cursor))
LMDBIO_10(int, cursor_renew, EINVAL, (MDB_txn* txn, MDB_cursor* cursor), (txn, cursor))
LMDBIO_10(MDB_txn*, cursor_txn, nullptr, (MDB_cursor* cursor), (cursor))
LMDBIO_10(MDB_dbi, cursor_dbi, 0, (MDB_cursor* cursor), (cursor))
LMDBIO_10(int, cursor_is_db, 0, (MDB_cursor* cursor), (cursor))
LMDBIO_10(int, cursor_get, EINVAL, (MDB_cursor* cursor, MDB_val* key, MDB_val* data, MDB_cursor_op op), (cursor, key, data, op))
LMDBIO_10(int, cursor_put, EINVAL, (MDB_cursor* cursor, MDB_val* key, MDB_val* data, unsigned flags), (cursor, key, data, flags))
LMDBIO_10(int, cursor_del, EINVAL, (MDB_cursor* cursor, unsigned flags), (cursor, flags))
LMDBIO_10(int, cursor_count, EINVAL, (MDB_cursor* cursor, size_t* count), (cursor, count))
LMDBIO_10(int, cmp, 0, (MDB_txn* txn, MDB_dbi dbi, const MDB_val* a, const MDB_val* b), (txn, dbi, a, b))
LMDBIO_10(int, dcmp, 0, (MDB_txn* txn, MDB_dbi dbi, const MDB_val* a, const MDB_val* b), (txn, dbi, a, b))
LMDBIO_10(int, reader_list, -1, (MDB_env* env, MDB_msg_func* func, void* ctx), (env, func, ctx))
LMDBIO_10(int, reader_check, EINVAL, (MDB_env* env, int* dead), (env, dead))
// clang-format on

}  // extern "C"
