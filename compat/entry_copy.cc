// Entry points of copies of a database.
#include <cerrno>

#include "compat/abi.h"
#include "compat/companion.h"
#include "compat/guard.h"
#include "compat/prove.h"

using namespace lmdbio;
using namespace lmdbio::compat;

namespace {

/// Finds the real library's transaction for a copy of `t`'s snapshot.  Returns false if there is none.
bool real_txn(MDB_txn* t, MDB_txn*& real) noexcept {
  real = t;
  if (const ReadTxn* const r = as<ReadTxn>(t); r != nullptr) {
    real = r->by_metas ? nullptr : r->companion;
    return real != nullptr;
  }
  if (const ForwardTxn* const f = as<ForwardTxn>(t); f != nullptr) real = f->real;
  return true;
}

// A compacting copy follows the tree's pages without checks, so all of them are checked before.

/// Returns the real environment for a copy that may start, or nullptr with the error in `rc`.
MDB_env* before_copy(EnvHandle& e, unsigned flags, MDB_txn* of, int& rc) {
  MDB_env* const real = companion(e, rc);
  if (real == nullptr || e.engine == nullptr || (flags & MDB_CP_COMPACT) == 0) return real;
  rc = guarded([&] { return prove_copyable(e, real, as<ReadTxn>(of)); });
  return rc == 0 ? real : nullptr;
}

}  // namespace

#define LMDBIO_COPY(name, flags, of, ...)                                    \
  EnvHandle* const e = as<EnvHandle>(env);                                   \
  if (e == nullptr) return LMDBIO_FORWARD(name, ENOSYS, env, ##__VA_ARGS__); \
  if (e->stock->name == nullptr) return ENOSYS;                              \
  int rc = 0;                                                                \
  MDB_env* const real = before_copy(*e, flags, of, rc);                      \
  if (real == nullptr) return rc

extern "C" {

LMDBIO_ABI int mdb_env_copy(MDB_env* env, const char* path) {
  LMDBIO_COPY(env_copy, 0, nullptr, path);
  return e->stock->env_copy(real, path);
}
LMDBIO_ABI int mdb_env_copyfd(MDB_env* env, mdb_filehandle_t fd) {
  LMDBIO_COPY(env_copyfd, 0, nullptr, fd);
  return e->stock->env_copyfd(real, fd);
}
LMDBIO_ABI int mdb_env_copy2(MDB_env* env, const char* path, unsigned int flags) {
  LMDBIO_COPY(env_copy2, flags, nullptr, path, flags);
  return e->stock->env_copy2(real, path, flags);
}
LMDBIO_ABI int mdb_env_copyfd2(MDB_env* env, mdb_filehandle_t fd, unsigned int flags) {
  LMDBIO_COPY(env_copyfd2, flags, nullptr, fd, flags);
  return e->stock->env_copyfd2(real, fd, flags);
}
LMDBIO_ABI int mdb_env_copy3(MDB_env* env, const char* path, unsigned int flags, MDB_txn* txn) {
  LMDBIO_COPY(env_copy3, flags, txn, path, flags, txn);
  MDB_txn* of = nullptr;
  return real_txn(txn, of) ? e->stock->env_copy3(real, path, flags, of) : MDB_BAD_TXN;
}
LMDBIO_ABI int mdb_env_copyfd3(MDB_env* env, mdb_filehandle_t fd, unsigned int flags, MDB_txn* txn) {
  LMDBIO_COPY(env_copyfd3, flags, txn, fd, flags, txn);
  MDB_txn* of = nullptr;
  return real_txn(txn, of) ? e->stock->env_copyfd3(real, fd, flags, of) : MDB_BAD_TXN;
}

LMDBIO_ABI int mdb_env_incr_dump(MDB_env* env, const char* path, size_t txnid) {
  LMDBIO_COPY(env_incr_dump, 0, nullptr, path, txnid);
  return e->stock->env_incr_dump(real, path, txnid);
}
LMDBIO_ABI int mdb_env_incr_dumpfd(MDB_env* env, mdb_filehandle_t fd, size_t txnid) {
  LMDBIO_COPY(env_incr_dumpfd, 0, nullptr, fd, txnid);
  return e->stock->env_incr_dumpfd(real, fd, txnid);
}
LMDBIO_ABI int mdb_env_incr_loadfd(MDB_env* env, mdb_filehandle_t fd) {
  LMDBIO_COPY(env_incr_loadfd, 0, nullptr, fd);
  return e->stock->env_incr_loadfd(real, fd);
}

}  // extern "C"
