// Entry points of databases: handles, flags, orders.
#include <cerrno>

#include "compat/abi.h"
#include "compat/guard.h"

using namespace lmdbio;
using namespace lmdbio::compat;

/// Defines `r`, a transaction that the engine serves.  For any other transaction, calls the real library and
/// returns.
#define LMDBIO_TXN_CALL(name, absent, ...)                                     \
  ReadTxn* const r = as<ReadTxn>(txn);                                         \
  if (r == nullptr) {                                                          \
    ForwardTxn* const f = as<ForwardTxn>(txn);                                 \
    if (f == nullptr) return LMDBIO_FORWARD(name, absent, txn, ##__VA_ARGS__); \
    return f->env->stock->name(f->real, ##__VA_ARGS__);                        \
  }

extern "C" {

// The engine looks up named databases of its transactions, because stock does not check the pages that this
// reads.
LMDBIO_ABI int mdb_dbi_open(MDB_txn* txn, const char* name, unsigned int flags, MDB_dbi* dbi) {
  LMDBIO_TXN_CALL(dbi_open, ENOSYS, name, flags, dbi)
  if (r->env == nullptr) return EINVAL;
  const int rc = r->txn.open_dbi(name, flags, *dbi).raw();
  return rc == EACCES ? r->read_only_error() : rc;
}

LMDBIO_ABI void mdb_dbi_close(MDB_env* env, MDB_dbi dbi) {
  EnvHandle* const e = as<EnvHandle>(env);
  if (e == nullptr) return LMDBIO_FORWARD(dbi_close, void(), env, dbi);
  if (e->engine != nullptr) return e->engine->close_dbi(dbi);
  e->stock->dbi_close(e->passed(), dbi);
}

LMDBIO_ABI int mdb_stat(MDB_txn* txn, MDB_dbi dbi, MDB_stat* stat) {
  LMDBIO_TXN_CALL(stat, EINVAL, dbi, stat)
  if (stat == nullptr || !r->txn.has_dbi(dbi, true)) return EINVAL;
  if (r->txn.blocked()) return MDB_BAD_TXN;
  (void)r->txn.record(dbi);  // as in stock: a record that is not found is all zeros
  fill(*stat, r->txn.view().page_size(), r->txn.record_now(dbi));
  return 0;
}

LMDBIO_ABI int mdb_dbi_flags(MDB_txn* txn, MDB_dbi dbi, unsigned int* flags) {
  LMDBIO_TXN_CALL(dbi_flags, EINVAL, dbi, flags)
  if (!r->txn.has_dbi(dbi)) return EINVAL;
  *flags = r->txn.record_now(dbi).flags & tree::kPersistentFlags;
  return 0;
}

LMDBIO_ABI int mdb_drop(MDB_txn* txn, MDB_dbi dbi, int del) {
  LMDBIO_TXN_CALL(drop, EINVAL, dbi, del)
  return static_cast<unsigned>(del) > 1 || !r->txn.has_dbi(dbi) ? EINVAL : r->read_only_error();
}

LMDBIO_ABI int mdb_set_compare(MDB_txn* txn, MDB_dbi dbi, MDB_cmp_func* cmp) {
  LMDBIO_TXN_CALL(set_compare, EINVAL, dbi, cmp)
  if (!r->txn.has_dbi(dbi)) return EINVAL;
  if (cmp == nullptr) return 0;  // stock would call it
  tree::Dbx& slot = r->txn.env().dbx(dbi);
  slot.key_order = format::Comparator::of_user(cmp);
  slot.ordered = true;
  return 0;
}

LMDBIO_ABI int mdb_set_dupsort(MDB_txn* txn, MDB_dbi dbi, MDB_cmp_func* cmp) {
  LMDBIO_TXN_CALL(set_dupsort, EINVAL, dbi, cmp)
  if (!r->txn.has_dbi(dbi)) return EINVAL;
  if (cmp != nullptr) r->txn.env().dbx(dbi).dup_order = format::Comparator::of_user(cmp);
  return 0;
}

// Stock stores the function and never calls it (lmdb.h: relocation is not implemented).
LMDBIO_ABI int mdb_set_relfunc(MDB_txn* txn, MDB_dbi dbi, MDB_rel_func* rel) {
  LMDBIO_TXN_CALL(set_relfunc, EINVAL, dbi, rel)
  return r->txn.has_dbi(dbi) ? 0 : EINVAL;
}

LMDBIO_ABI int mdb_set_relctx(MDB_txn* txn, MDB_dbi dbi, void* ctx) {
  LMDBIO_TXN_CALL(set_relctx, EINVAL, dbi, ctx)
  return r->txn.has_dbi(dbi) ? 0 : EINVAL;
}

LMDBIO_ABI int mdb_cmp(MDB_txn* txn, MDB_dbi dbi, const MDB_val* a, const MDB_val* b) {
  LMDBIO_TXN_CALL(cmp, 0, dbi, a, b)
  return dbi < r->txn.env().max_dbs() ? format::compare_values(r->txn.env().dbx(dbi).key_order, *a, *b) : 0;
}

LMDBIO_ABI int mdb_dcmp(MDB_txn* txn, MDB_dbi dbi, const MDB_val* a, const MDB_val* b) {
  LMDBIO_TXN_CALL(dcmp, 0, dbi, a, b)
  if (dbi >= r->txn.env().max_dbs()) return 0;
  format::Comparator order = r->txn.env().dbx(dbi).dup_order;
  if (order.order == format::Order::uint && a->mv_size == sizeof(std::size_t))
    order.order = format::Order::word;
  return format::compare_values(order, *a, *b);
}

}  // extern "C"
