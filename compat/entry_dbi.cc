// Databases: handles, flags, orders.
#include <cerrno>

#include "compat/abi.h"
#include "compat/guard.h"

using namespace lmdbio;
using namespace lmdbio::compat;

namespace {

/// `f(table, real transaction)` for whichever kind `txn` is; stock handles are forwarded by the caller.
template <class F>
int with_real(ReadTxn* r, ForwardTxn* f, F&& call) {
  if (r != nullptr) return r->env != nullptr ? call(*r->env->stock, r->companion) : EINVAL;
  return call(*f->env->stock, f->real);
}

/// Answers of stock that depend on the engine's state: an ended transaction, or one that met a bad page.
int usable(const ReadTxn* r, MDB_dbi dbi, bool free_too) noexcept {
  if (r == nullptr) return 0;
  if (!r->txn.has_dbi(dbi, free_too)) return EINVAL;
  return r->txn.blocked() ? MDB_BAD_TXN : 0;
}

}  // namespace

#define LMDBIO_TXN_CALL(name, absent, ...)                                                     \
  ReadTxn* const r = as<ReadTxn>(txn);                                                         \
  ForwardTxn* const f = as<ForwardTxn>(txn);                                                   \
  if (r == nullptr && f == nullptr) return LMDBIO_FORWARD(name, absent, txn, ##__VA_ARGS__);   \
  const auto call = [&](const Stock& s, MDB_txn* real) { return s.name(real, ##__VA_ARGS__); }

extern "C" {

LMDBIO_ABI int mdb_dbi_open(MDB_txn* txn, const char* name, unsigned int flags, MDB_dbi* dbi) {
  LMDBIO_TXN_CALL(dbi_open, ENOSYS, name, flags, dbi);
  if (r != nullptr && r->txn.blocked()) return MDB_BAD_TXN;
  const int rc = with_real(r, f, call);
  if (rc != 0 || r == nullptr) return rc;
  if (name != nullptr) r->opened_dbi = true;
  const int saved = errno;
  int adopted = 0;
  try {
    r->txn.adopt_dbi(name, flags, *dbi);
  } catch (const std::bad_alloc&) {
    adopted = ENOMEM;
  }
  errno = saved;
  return adopted;
}

LMDBIO_ABI void mdb_dbi_close(MDB_env* env, MDB_dbi dbi) {
  EnvHandle* const e = as<EnvHandle>(env);
  if (e == nullptr) return LMDBIO_FORWARD(dbi_close, void(), env, dbi);
  if (e->engine != nullptr) e->engine->close_dbi(dbi);
  e->stock->dbi_close(e->real, dbi);
}

LMDBIO_ABI int mdb_stat(MDB_txn* txn, MDB_dbi dbi, MDB_stat* stat) {
  LMDBIO_TXN_CALL(stat, EINVAL, dbi, stat);
  if (stat == nullptr) return EINVAL;
  if (const int rc = usable(r, dbi, true); rc != 0) return rc;
  return with_real(r, f, call);
}

LMDBIO_ABI int mdb_dbi_flags(MDB_txn* txn, MDB_dbi dbi, unsigned int* flags) {
  LMDBIO_TXN_CALL(dbi_flags, EINVAL, dbi, flags);
  return with_real(r, f, call);
}

LMDBIO_ABI int mdb_drop(MDB_txn* txn, MDB_dbi dbi, int del) {
  LMDBIO_TXN_CALL(drop, EINVAL, dbi, del);
  return with_real(r, f, call);
}

LMDBIO_ABI int mdb_set_compare(MDB_txn* txn, MDB_dbi dbi, MDB_cmp_func* cmp) {
  LMDBIO_TXN_CALL(set_compare, EINVAL, dbi, cmp);
  const int rc = with_real(r, f, call);
  if (rc == 0 && r != nullptr && cmp != nullptr) {
    db::Dbx& slot = r->txn.env().dbx(dbi);
    slot.key_order = db::Comparator::of_user(cmp);
    slot.ordered = true;
  }
  return rc;
}

LMDBIO_ABI int mdb_set_dupsort(MDB_txn* txn, MDB_dbi dbi, MDB_cmp_func* cmp) {
  LMDBIO_TXN_CALL(set_dupsort, EINVAL, dbi, cmp);
  const int rc = with_real(r, f, call);
  if (rc == 0 && r != nullptr && cmp != nullptr) r->txn.env().dbx(dbi).dup_order = db::Comparator::of_user(cmp);
  return rc;
}

LMDBIO_ABI int mdb_set_relfunc(MDB_txn* txn, MDB_dbi dbi, MDB_rel_func* rel) {
  LMDBIO_TXN_CALL(set_relfunc, EINVAL, dbi, rel);
  return with_real(r, f, call);
}

LMDBIO_ABI int mdb_set_relctx(MDB_txn* txn, MDB_dbi dbi, void* ctx) {
  LMDBIO_TXN_CALL(set_relctx, EINVAL, dbi, ctx);
  return with_real(r, f, call);
}

LMDBIO_ABI int mdb_cmp(MDB_txn* txn, MDB_dbi dbi, const MDB_val* a, const MDB_val* b) {
  LMDBIO_TXN_CALL(cmp, 0, dbi, a, b);
  return with_real(r, f, call);
}

LMDBIO_ABI int mdb_dcmp(MDB_txn* txn, MDB_dbi dbi, const MDB_val* a, const MDB_val* b) {
  LMDBIO_TXN_CALL(dcmp, 0, dbi, a, b);
  return with_real(r, f, call);
}

}  // extern "C"
