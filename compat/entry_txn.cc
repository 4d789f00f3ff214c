// Transactions.
#include <cerrno>
#include <new>

#include "compat/abi.h"
#include "compat/guard.h"

using namespace lmdbio;
using namespace lmdbio::compat;

namespace {

/// The companion as the engine's source of transaction ids.
struct CompanionSource {
  const Stock& stock;
  MDB_txn* companion;

  Status renew(std::uint64_t& txnid) const noexcept {
    stock.txn_reset(companion);
    if (const int rc = stock.txn_renew(companion); rc != 0)
      return rc > 0 ? Status::from_errno(rc) : Status::from_mdb(rc);
    txnid = stock.txn_id(companion);
    return {};
  }
};

/// The engine on the snapshot that the companion has just taken.
Status start(ReadTxn& t) {
  const CompanionSource source{*t.env->stock, t.companion};
  return t.txn.begin(source.stock.txn_id(t.companion), source);
}

void close_cursors(ForwardTxn& t) noexcept {
  while (t.cursors != nullptr) {
    ForwardCursor* const c = t.cursors;
    c->detach();
    if (t.read_only) continue;  // the program closes it
    t.env->stats.add(c->counters);
    free_cursor(c);  // stock has freed its own
  }
}

/// What stock frees when `t` ends: its descendants, and the cursors of write transactions.
void free_forward(ForwardTxn* t) noexcept {
  if (t->child != nullptr) free_forward(t->child);
  if (t->parent != nullptr) t->parent->child = nullptr;
  close_cursors(*t);
  t->env->stats.add(t->counters);
  t->tag = 0;
  delete t;
}

int begin_forward(EnvHandle& e, ForwardTxn* parent, unsigned flags, MDB_txn** ret) noexcept {
  auto* const t = new (std::nothrow) ForwardTxn;
  if (t == nullptr) return ENOMEM;
  const int rc = e.stock->txn_begin(e.real, parent != nullptr ? parent->real : nullptr, flags, &t->real);
  if (rc != 0) {
    delete t;
    return rc;
  }
  e.stats.forward_txn.fetch_add(1, std::memory_order_relaxed);
  t->env = &e;
  t->parent = parent;
  t->read_only = (flags & MDB_RDONLY) != 0;
  if (parent != nullptr) parent->child = t;
  *ret = give(t);
  return 0;
}

/// A companion whose meta could not be copied whole, under a writer that never pauses: stock serves it.
int hand_over(ReadTxn& t, MDB_txn** ret) noexcept {
  EnvHandle& e = *t.env;
  auto* const f = new (std::nothrow) ForwardTxn;
  if (f == nullptr) {
    e.stock->txn_abort(t.companion);
    t.companion = nullptr;
    e.give_back(&t);
    return ENOMEM;
  }
  f->env = &e;
  f->real = t.companion;
  f->read_only = true;
  t.companion = nullptr;
  e.give_back(&t);
  e.stats.forward_txn.fetch_add(1, std::memory_order_relaxed);
  *ret = give(f);
  return 0;
}

int begin_read(EnvHandle& e, unsigned flags, MDB_txn** ret) {
  if (e.engine->window() == nullptr) return begin_forward(e, nullptr, flags, ret);  // no address space for one
  ReadTxn* const t = e.take();
  if (t == nullptr) return ENOMEM;
  const int rc = t->companion != nullptr ? e.stock->txn_renew(t->companion)
                                         : e.stock->txn_begin(e.real, nullptr, flags, &t->companion);
  if (rc != 0) [[unlikely]] {
    e.give_back(t);
    return rc;
  }
  ++t->begun;
  if (const Status st = start(*t); !st.ok()) [[unlikely]] {
    if (st.raw() == MDB_BAD_TXN) return hand_over(*t, ret);
    // The companion could not be renewed, say for a map that has grown: it has ended.
    if (!e.keep_companions) {
      e.stock->txn_abort(t->companion);
      t->companion = nullptr;
    }
    e.give_back(t);
    return st.raw();
  }
  *ret = give(t);
  return 0;
}

/// End of a transaction that the program will not name again.
void end_read(ReadTxn* t, bool keep) noexcept {
  EnvHandle* const e = t->env;
  if (e == nullptr) {  // its environment was closed under it
    t->txn.recycle();
    t->tag = 0;
    delete t;
    return;
  }
  t->txn.end(keep);
  t->txn.recycle();
  if (keep && t->opened_dbi) {
    (void)e->stock->txn_commit(t->companion);
    t->companion = nullptr;
  } else if (e->keep_companions) {
    e->stock->txn_reset(t->companion);
  } else {
    e->stock->txn_abort(t->companion);
    t->companion = nullptr;
  }
  t->opened_dbi = false;
  e->give_back(t);
}

}  // namespace

extern "C" {

LMDBIO_ABI int mdb_txn_begin(MDB_env* env, MDB_txn* parent, unsigned int flags, MDB_txn** txn) {
  EnvHandle* const e = as<EnvHandle>(env);
  if (e == nullptr) return LMDBIO_FORWARD(txn_begin, ENOSYS, env, parent, flags, txn);
  if (e->engine != nullptr && parent == nullptr && (flags & MDB_RDONLY) != 0) [[likely]]
    return begin_read(*e, flags, txn);
  if (const ReadTxn* const p = as<ReadTxn>(parent); p != nullptr) {
    MDB_txn* none = nullptr;  // stock refuses: a read-only transaction has no children
    return e->stock->txn_begin(e->real, p->companion, flags, &none);
  }
  return begin_forward(*e, as<ForwardTxn>(parent), flags, txn);
}

LMDBIO_ABI int mdb_txn_renew(MDB_txn* txn) {
  if (ReadTxn* const t = as<ReadTxn>(txn); t != nullptr) [[likely]] {
    if (t->env == nullptr) return EINVAL;
    if (const int rc = t->env->stock->txn_renew(t->companion); rc != 0) return rc;
    ++t->renewed;
    if (const Status st = start(*t); !st.ok()) [[unlikely]] {
      t->env->stock->txn_reset(t->companion);
      return st.raw();
    }
    return 0;
  }
  if (ForwardTxn* const t = as<ForwardTxn>(txn); t != nullptr) return t->env->stock->txn_renew(t->real);
  return LMDBIO_FORWARD(txn_renew, EINVAL, txn);
}

LMDBIO_ABI void mdb_txn_reset(MDB_txn* txn) {
  if (ReadTxn* const t = as<ReadTxn>(txn); t != nullptr) [[likely]] {
    if (t->env == nullptr) return;
    t->txn.end(false);
    t->opened_dbi = false;
    t->env->stock->txn_reset(t->companion);
    return;
  }
  if (ForwardTxn* const t = as<ForwardTxn>(txn); t != nullptr) return t->env->stock->txn_reset(t->real);
  return LMDBIO_FORWARD(txn_reset, void(), txn);
}

LMDBIO_ABI void mdb_txn_abort(MDB_txn* txn) {
  if (ReadTxn* const t = as<ReadTxn>(txn); t != nullptr) [[likely]]
    return end_read(t, false);
  if (ForwardTxn* const t = as<ForwardTxn>(txn); t != nullptr) {
    t->env->stock->txn_abort(t->real);
    return free_forward(t);
  }
  return LMDBIO_FORWARD(txn_abort, void(), txn);
}

LMDBIO_ABI int mdb_txn_commit(MDB_txn* txn) {
  if (ReadTxn* const t = as<ReadTxn>(txn); t != nullptr) {
    end_read(t, true);
    return 0;
  }
  if (ForwardTxn* const t = as<ForwardTxn>(txn); t != nullptr) {
    const int rc = t->env->stock->txn_commit(t->real);
    free_forward(t);  // stock frees it on failure too
    return rc;
  }
  return LMDBIO_FORWARD(txn_commit, EINVAL, txn);
}

LMDBIO_ABI MDB_env* mdb_txn_env(MDB_txn* txn) {
  if (const ReadTxn* const t = as<ReadTxn>(txn); t != nullptr) return give(t->env);
  if (const ForwardTxn* const t = as<ForwardTxn>(txn); t != nullptr) return give(t->env);
  return LMDBIO_FORWARD(txn_env, nullptr, txn);
}

LMDBIO_ABI size_t mdb_txn_id(MDB_txn* txn) {
  if (const ReadTxn* const t = as<ReadTxn>(txn); t != nullptr)
    return t->env != nullptr ? t->env->stock->txn_id(t->companion) : t->txn.id();
  if (const ForwardTxn* const t = as<ForwardTxn>(txn); t != nullptr) return t->env->stock->txn_id(t->real);
  return LMDBIO_FORWARD(txn_id, 0, txn);
}

}  // extern "C"
