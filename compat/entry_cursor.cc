// Cursors.
#include <cerrno>
#include <new>

#include "compat/abi.h"
#include "compat/guard.h"

using namespace lmdbio;
using namespace lmdbio::compat;

namespace {

int open_forward(ForwardTxn& t, MDB_dbi dbi, MDB_cursor** cursor) noexcept {
  if (cursor == nullptr) return EINVAL;
  MDB_cursor* real = nullptr;
  if (const int rc = t.env->stock->cursor_open(t.real, dbi, &real); rc != 0) return rc;
  try {
    *cursor = give(make_cursor<ForwardCursor>(nullptr, t, real));
    return 0;
  } catch (const std::bad_alloc&) {
    t.env->stock->cursor_close(real);
    return ENOMEM;
  }
}

/// A cursor of an environment of ours renewed to a transaction that stock serves.
int renew_elsewhere(ReadCursor* c, ForwardTxn& t) noexcept {
  if (!t.read_only) return EINVAL;  // cursors of write transactions are tracked: stock refuses
  MDB_cursor* real = nullptr;
  const MDB_dbi dbi = c->cursor.dbi();
  if (const int rc = t.env->stock->cursor_open(t.real, dbi, &real); rc != 0) return rc;
  (void)make_cursor<ForwardCursor>(empty_cursor(c), t, real);
  return 0;
}

/// The other way.
int renew_elsewhere(ForwardCursor* c, ReadTxn& t) {
  if (c->owner != nullptr && !c->owner->read_only) return EINVAL;
  const MDB_dbi dbi = c->stock->cursor_dbi(c->real);
  if (!t.txn.has_dbi(dbi, true)) return EINVAL;
  if (t.txn.blocked()) return MDB_BAD_TXN;
  c->stock->cursor_close(c->real);
  if (c->owner != nullptr) c->owner->counters.add(c->counters);
  c->detach();
  (void)make_cursor<ReadCursor>(empty_cursor(c), t, dbi);
  return 0;
}

/// mdb_cursor_get with a cursor that the engine does not serve.  Apart, so that the hot path has no frame.
__attribute__((noinline)) int get_elsewhere(MDB_cursor* cursor, MDB_val* key, MDB_val* data, MDB_cursor_op op,
                                            const void* return_address) {
  if (ForwardCursor* const c = as<ForwardCursor>(cursor); c != nullptr) {
    ++c->counters.cursor_get;
    return c->stock->cursor_get(c->real, key, data, op);
  }
  return LMDBIO_FORWARD_FROM(return_address, cursor_get, EINVAL, cursor, key, data, op);
}

}  // namespace

extern "C" {

LMDBIO_ABI int mdb_cursor_get(MDB_cursor* cursor, MDB_val* key, MDB_val* data, MDB_cursor_op op) {
  if (ReadCursor* const c = as<ReadCursor>(cursor); c != nullptr) [[likely]]
    return c->cursor.get(key, data, op).raw();
  return get_elsewhere(cursor, key, data, op, __builtin_return_address(0));
}

LMDBIO_ABI int mdb_cursor_open(MDB_txn* txn, MDB_dbi dbi, MDB_cursor** cursor) {
  if (ReadTxn* const t = as<ReadTxn>(txn); t != nullptr) [[likely]] {
    if (cursor == nullptr || !t->txn.has_dbi(dbi, true)) return EINVAL;
    if (t->txn.blocked()) return MDB_BAD_TXN;
    try {
      *cursor = give(make_cursor<ReadCursor>(nullptr, *t, dbi));
    } catch (const std::bad_alloc&) {
      return ENOMEM;
    }
    return 0;
  }
  if (ForwardTxn* const t = as<ForwardTxn>(txn); t != nullptr) return open_forward(*t, dbi, cursor);
  return LMDBIO_FORWARD(cursor_open, EINVAL, txn, dbi, cursor);
}

LMDBIO_ABI int mdb_cursor_renew(MDB_txn* txn, MDB_cursor* cursor) {
  if (ReadCursor* const c = as<ReadCursor>(cursor); c != nullptr) {
    if (ForwardTxn* const f = as<ForwardTxn>(txn); f != nullptr) return renew_elsewhere(c, *f);
    ReadTxn* const t = as<ReadTxn>(txn);
    if (t == nullptr || !t->txn.has_dbi(c->cursor.dbi(), true)) return EINVAL;
    if (t->txn.blocked()) return MDB_BAD_TXN;
    try {
      c->cursor.renew(t->txn);
    } catch (const std::bad_alloc&) {
      return ENOMEM;
    }
    c->handle = t;
    return 0;
  }
  if (ForwardCursor* const c = as<ForwardCursor>(cursor); c != nullptr) {
    if (ReadTxn* const r = as<ReadTxn>(txn); r != nullptr) return renew_elsewhere(c, *r);
    ForwardTxn* const t = as<ForwardTxn>(txn);
    if (t == nullptr) return EINVAL;
    const int rc = c->stock->cursor_renew(t->real, c->real);
    if (rc == 0) {
      c->detach();
      c->attach(*t);
    }
    return rc;
  }
  return LMDBIO_FORWARD(cursor_renew, EINVAL, txn, cursor);
}

LMDBIO_ABI void mdb_cursor_close(MDB_cursor* cursor) {
  if (ReadCursor* const c = as<ReadCursor>(cursor); c != nullptr) [[likely]] {
    free_cursor(c);
    return;
  }
  if (ForwardCursor* const c = as<ForwardCursor>(cursor); c != nullptr) {
    // Stock keeps a cursor that a nested transaction shadows.
    if (c->owner != nullptr && !c->owner->read_only && c->owner->child != nullptr) return;
    c->stock->cursor_close(c->real);
    if (c->owner != nullptr) c->owner->counters.add(c->counters);
    c->detach();
    free_cursor(c);
    return;
  }
  return LMDBIO_FORWARD(cursor_close, void(), cursor);
}

LMDBIO_ABI MDB_txn* mdb_cursor_txn(MDB_cursor* cursor) {
  if (const ReadCursor* const c = as<ReadCursor>(cursor); c != nullptr) return give(c->handle);
  if (const ForwardCursor* const c = as<ForwardCursor>(cursor); c != nullptr) {
    if (c->owner == nullptr) return c->owner_handle;
    ForwardTxn* t = c->owner;  // a shadowed cursor is the innermost transaction's
    while (!t->read_only && t->child != nullptr) t = t->child;
    return give(t);
  }
  return LMDBIO_FORWARD(cursor_txn, nullptr, cursor);
}

LMDBIO_ABI MDB_dbi mdb_cursor_dbi(MDB_cursor* cursor) {
  if (const ReadCursor* const c = as<ReadCursor>(cursor); c != nullptr) return c->cursor.dbi();
  if (const ForwardCursor* const c = as<ForwardCursor>(cursor); c != nullptr) return c->stock->cursor_dbi(c->real);
  return LMDBIO_FORWARD(cursor_dbi, 0, cursor);
}

LMDBIO_ABI int mdb_cursor_count(MDB_cursor* cursor, size_t* count) {
  if (ReadCursor* const c = as<ReadCursor>(cursor); c != nullptr) {
    if (count == nullptr) return EINVAL;
    return c->cursor.count(*count).raw();
  }
  if (ForwardCursor* const c = as<ForwardCursor>(cursor); c != nullptr)
    return c->stock->cursor_count(c->real, count);
  return LMDBIO_FORWARD(cursor_count, EINVAL, cursor, count);
}

}  // extern "C"
