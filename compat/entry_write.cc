// Entry points of writes: stock serves them.  For transactions of ours they return the errors that stock
// returns.
#include <cerrno>
#include <cstdint>

#include "compat/abi.h"

using namespace lmdbio;
using namespace lmdbio::compat;

extern "C" {

LMDBIO_ABI int mdb_put(MDB_txn* txn, MDB_dbi dbi, MDB_val* key, MDB_val* data, unsigned int flags) {
  if (ForwardTxn* const t = as<ForwardTxn>(txn); t != nullptr) [[likely]] {
    t->env->stats.count(t->counters, &ForwardCounters::write);
    return t->env->stock->put(t->real, dbi, key, data, flags);
  }
  if (const ReadTxn* const t = as<ReadTxn>(txn); t != nullptr) {
    constexpr unsigned kKnown = MDB_NOOVERWRITE | MDB_NODUPDATA | MDB_RESERVE | MDB_APPEND | MDB_APPENDDUP;
    if (key == nullptr || data == nullptr || !t->txn.has_dbi(dbi) || (flags & ~kKnown) != 0) return EINVAL;
    return t->read_only_error();
  }
  return LMDBIO_FORWARD(put, EINVAL, txn, dbi, key, data, flags);
}

LMDBIO_ABI int mdb_del(MDB_txn* txn, MDB_dbi dbi, MDB_val* key, MDB_val* data) {
  if (ForwardTxn* const t = as<ForwardTxn>(txn); t != nullptr) [[likely]] {
    t->env->stats.count(t->counters, &ForwardCounters::write);
    return t->env->stock->del(t->real, dbi, key, data);
  }
  if (const ReadTxn* const t = as<ReadTxn>(txn); t != nullptr)
    return key == nullptr || !t->txn.has_dbi(dbi) ? EINVAL : t->read_only_error();
  return LMDBIO_FORWARD(del, EINVAL, txn, dbi, key, data);
}

LMDBIO_ABI int mdb_cursor_put(MDB_cursor* cursor, MDB_val* key, MDB_val* data, unsigned int flags) {
  if (ForwardCursor* const c = as<ForwardCursor>(cursor); c != nullptr) [[likely]] {
    c->count(&ForwardCounters::write);
    return c->stock->cursor_put(c->real, key, data, flags);
  }
  if (const ReadCursor* const c = as<ReadCursor>(cursor); c != nullptr) {
    if (key == nullptr) return EINVAL;
    if ((flags & MDB_MULTIPLE) != 0) {
      const std::size_t items = data[1].mv_size;
      const bool is_10 = c->handle.read_only_error() != EACCES;
      if (is_10 && items == 0) return EINVAL;
      data[1].mv_size = 0;  // number of items stored
      if (c->cursor.txn() != nullptr &&
          (c->cursor.txn()->record_now(c->cursor.dbi()).flags & MDB_DUPFIXED) == 0)
        return MDB_INCOMPATIBLE;
      if (is_10 && data[0].mv_size > SIZE_MAX / items) return MDB_BAD_VALSIZE;
    }
    return c->handle.read_only_error();
  }
  return LMDBIO_FORWARD(cursor_put, EINVAL, cursor, key, data, flags);
}

LMDBIO_ABI int mdb_cursor_del(MDB_cursor* cursor, unsigned int flags) {
  if (ForwardCursor* const c = as<ForwardCursor>(cursor); c != nullptr) [[likely]] {
    c->count(&ForwardCounters::write);
    return c->stock->cursor_del(c->real, flags);
  }
  if (const ReadCursor* const c = as<ReadCursor>(cursor); c != nullptr) return c->handle.read_only_error();
  return LMDBIO_FORWARD(cursor_del, EINVAL, cursor, flags);
}

}  // extern "C"
