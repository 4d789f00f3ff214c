// The entry point of lookups by key.
#include <cerrno>

#include "compat/abi.h"

using namespace lmdbio;
using namespace lmdbio::compat;

namespace {

inline int get(ReadTxn& t, MDB_dbi dbi, MDB_val* key, MDB_val* data) {
  if (key == nullptr || data == nullptr || !t.txn.has_dbi(dbi)) return EINVAL;
  if (t.txn.blocked()) return MDB_BAD_TXN;
  return t.txn.get(dbi, *key, *data).raw();
}

/// A separate function, so that the hot path needs no stack frame.
__attribute__((noinline)) int get_elsewhere(MDB_txn* txn, MDB_dbi dbi, MDB_val* key, MDB_val* data,
                                            const void* return_address) {
  if (ReadTxn* const t = as<ReadTxn>(txn); t != nullptr) return get(*t, dbi, key, data);
  if (ForwardTxn* const t = as<ForwardTxn>(txn); t != nullptr) {
    t->env->stats.count(t->counters, &ForwardCounters::get);
    return t->env->stock->get(t->real, dbi, key, data);
  }
  return LMDBIO_FORWARD_FROM(return_address, get, EINVAL, txn, dbi, key, data);
}

}  // namespace

extern "C" {

LMDBIO_ABI int mdb_get(MDB_txn* txn, MDB_dbi dbi, MDB_val* key, MDB_val* data) {
  if (const TxnHandle* const h = as<TxnHandle>(txn); h != nullptr) [[likely]]
    return get(*h->txn, dbi, key, data);
  return get_elsewhere(txn, dbi, key, data, __builtin_return_address(0));
}

}  // extern "C"
