// Entry points of cursors.
#include <cerrno>
#include <new>

#include "compat/abi.h"
#include "compat/guard.h"
#include "lmdbio/base/fork_safe_mutex.h"

using namespace lmdbio;
using namespace lmdbio::compat;

namespace {

// Stock's cursor_open and Txn::record may run a user's comparator, which may throw.  The functions here must
// have no cleanup and no catch for such an exception, so they allocate memory without exceptions.

/// Opens a cursor of the real library in a handle of ours.
int open_forward(ForwardTxn& t, MDB_dbi dbi, MDB_cursor** cursor) {
  if (cursor == nullptr) return EINVAL;
  MDB_cursor* real = nullptr;
  if (const int rc = t.env->stock->cursor_open(t.real, dbi, &real); rc != 0) return rc;
  void* const room = cursor_room();
  if (room == nullptr) {
    t.env->stock->cursor_close(real);
    return ENOMEM;
  }
  *cursor = give(make_cursor<ForwardCursor>(room, t, real));
  return 0;
}

/// Makes a cursor of the engine.  Its database record must have been looked up.  Returns nullptr if memory is
/// short.
ReadCursor* make_read(ReadTxn& t, MDB_dbi dbi) noexcept {
  const AsyncSignalsBlocked fork_safe(has_own_threads());
  std::unique_ptr<tree::Walker> dups;
  if (tree::Cursor::wants_dups(t.txn, dbi)) {
    dups.reset(new (std::nothrow) tree::Walker);
    if (dups == nullptr) return nullptr;
  }
  void* const room = cursor_room();
  return room != nullptr ? make_cursor<ReadCursor>(room, t, dbi, std::move(dups)) : nullptr;
}

/// Renews an engine's cursor to a transaction that stock serves.
int renew_elsewhere(ReadCursor* c, ForwardTxn& t) {
  if (!t.read_only) return EINVAL;  // stock tracks cursors of write transactions, and refuses them
  MDB_cursor* real = nullptr;
  const MDB_dbi dbi = c->cursor.dbi();
  if (const int rc = t.env->stock->cursor_open(t.real, dbi, &real); rc != 0) return rc;
  (void)make_cursor<ForwardCursor>(empty_cursor(c), t, real);
  return 0;
}

/// Renews a cursor of stock to a transaction that the engine serves.
int renew_elsewhere(ForwardCursor* c, ReadTxn& t) {
  if (c->owner != nullptr && !c->owner->read_only) return EINVAL;
  const MDB_dbi dbi = c->stock->cursor_dbi(c->real);
  if (!t.txn.has_dbi(dbi, true)) return EINVAL;
  if (t.txn.blocked()) return MDB_BAD_TXN;
  (void)t.txn.record(dbi);
  std::unique_ptr<tree::Walker> dups;
  if (tree::Cursor::wants_dups(t.txn, dbi)) {
    dups.reset(new (std::nothrow) tree::Walker);
    if (dups == nullptr) return ENOMEM;
  }
  // 1.0 reads the cursor's transaction, which it has freed if it has ended.  Then the cursor is not freed.
  if (c->owner != nullptr || c->stock->series != Series::v10) c->stock->cursor_close(c->real);
  if (c->owner != nullptr) c->owner->counters.add(c->counters);
  c->detach();
  (void)make_cursor<ReadCursor>(empty_cursor(c), t, dbi, std::move(dups));
  return 0;
}

/// Implements mdb_cursor_get for cursors that the engine does not serve.  A separate function, so that the
/// hot path needs no stack frame.
__attribute__((noinline)) int get_elsewhere(MDB_cursor* cursor, MDB_val* key, MDB_val* data, MDB_cursor_op op,
                                            const void* return_address) {
  if (ForwardCursor* const c = as<ForwardCursor>(cursor); c != nullptr) {
    c->count(&ForwardCounters::cursor_get);
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
    (void)t->txn.record(dbi);  // as mdb_cursor_init: the first use of the cursor returns the error
    ReadCursor* const c = make_read(*t, dbi);
    if (c == nullptr) return ENOMEM;
    *cursor = give(c);
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
    if (!c->cursor.renew(t->txn)) return ENOMEM;
    c->handle.replace(*t);
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
    const AsyncSignalsBlocked fork_safe(has_own_threads());
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
  if (const ReadCursor* const c = as<ReadCursor>(cursor); c != nullptr) return give(c->handle.get());
  if (const ForwardCursor* const c = as<ForwardCursor>(cursor); c != nullptr) {
    if (c->owner == nullptr) return c->owner_handle;
    ForwardTxn* t = c->owner;  // a shadowed cursor belongs to the innermost transaction
    while (!t->read_only && t->child != nullptr) t = t->child;
    return give(t);
  }
  return LMDBIO_FORWARD(cursor_txn, nullptr, cursor);
}

LMDBIO_ABI MDB_dbi mdb_cursor_dbi(MDB_cursor* cursor) {
  if (const ReadCursor* const c = as<ReadCursor>(cursor); c != nullptr) return c->cursor.dbi();
  if (const ForwardCursor* const c = as<ForwardCursor>(cursor); c != nullptr)
    return c->stock->cursor_dbi(c->real);
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
