// Lookups by key.
#include <cerrno>

#include "compat/abi.h"

using namespace lmdbio;
using namespace lmdbio::compat;

extern "C" {

LMDBIO_ABI int mdb_get(MDB_txn* txn, MDB_dbi dbi, MDB_val* key, MDB_val* data) {
  if (ReadTxn* const t = as<ReadTxn>(txn); t != nullptr) [[likely]] {
    if (key == nullptr || data == nullptr || !t->txn.has_dbi(dbi)) return EINVAL;
    if (t->txn.blocked()) return MDB_BAD_TXN;
    return t->txn.get(dbi, *key, *data).raw();
  }
  if (ForwardTxn* const t = as<ForwardTxn>(txn); t != nullptr) {
    t->env->stats.count(t->counters, &ForwardCounters::get);
    return t->env->stock->get(t->real, dbi, key, data);
  }
  return LMDBIO_FORWARD(get, EINVAL, txn, dbi, key, data);
}

}  // extern "C"
