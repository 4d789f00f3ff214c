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

}  // namespace

#define LMDBIO_TXN_CALL(name, absent, ...)                                                     \
  ReadTxn* const r = as<ReadTxn>(txn);                                                         \
  ForwardTxn* const f = as<ForwardTxn>(txn);                                                   \
  if (r == nullptr && f == nullptr) return LMDBIO_FORWARD(name, absent, txn, ##__VA_ARGS__);   \
  const auto call = [&](const Stock& s, MDB_txn* real) { return s.name(real, ##__VA_ARGS__); }

extern "C" {

LMDBIO_ABI int mdb_dbi_open(MDB_txn* txn, const char* name, unsigned int flags, MDB_dbi* dbi) {
  LMDBIO_TXN_CALL(dbi_open, ENOSYS, name, flags, dbi);
  if (r != nullptr && r->txn.blocked() && !r->txn.finished()) {  // what the companion does not know of
    constexpr unsigned kKnown = MDB_REVERSEKEY | MDB_DUPSORT | MDB_INTEGERKEY | MDB_DUPFIXED | MDB_INTEGERDUP |
                                MDB_REVERSEDUP | MDB_CREATE;
    return (flags & ~kKnown) != 0 ? EINVAL : MDB_BAD_TXN;
  }
  const int rc = with_real(r, f, call);
  if (r == nullptr) return rc;
  if (rc != 0) {
    if (name != nullptr && rc != EINVAL && !r->txn.blocked()) r->txn.order_main();  // stock has, when it fails
    return rc;
  }
  if (name != nullptr) r->opened_dbi = true;
  return r->txn.adopt_dbi(name, flags, *dbi) ? 0 : ENOMEM;
}

LMDBIO_ABI void mdb_dbi_close(MDB_env* env, MDB_dbi dbi) {
  EnvHandle* const e = as<EnvHandle>(env);
  if (e == nullptr) return LMDBIO_FORWARD(dbi_close, void(), env, dbi);
  if (e->engine != nullptr) e->engine->close_dbi(dbi);
  e->stock->dbi_close(e->real, dbi);
}

LMDBIO_ABI int mdb_stat(MDB_txn* txn, MDB_dbi dbi, MDB_stat* stat) {
  LMDBIO_TXN_CALL(stat, EINVAL, dbi, stat);
  if (r == nullptr) return call(*f->env->stock, f->real);
  if (stat == nullptr || !r->txn.has_dbi(dbi, true)) return EINVAL;
  if (r->txn.blocked()) return MDB_BAD_TXN;
  (void)r->txn.record(dbi);  // as stock: one that is not found is all zeros
  const format::DbRecord& db = r->txn.record_now(dbi);
  stat->ms_psize = static_cast<unsigned>(r->txn.view().page_size());
  stat->ms_depth = db.depth;
  stat->ms_branch_pages = db.branch_pages;
  stat->ms_leaf_pages = db.leaf_pages;
  stat->ms_overflow_pages = db.overflow_pages;
  stat->ms_entries = db.entries;
  return 0;
}

LMDBIO_ABI int mdb_dbi_flags(MDB_txn* txn, MDB_dbi dbi, unsigned int* flags) {
  LMDBIO_TXN_CALL(dbi_flags, EINVAL, dbi, flags);
  if (r == nullptr) return call(*f->env->stock, f->real);
  if (!r->txn.has_dbi(dbi)) return EINVAL;
  *flags = r->txn.record_now(dbi).flags & db::kPersistentFlags;
  return 0;
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
