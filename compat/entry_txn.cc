// Entry points of transactions.
#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <new>

#include "compat/abi.h"
#include "compat/companion.h"
#include "compat/guard.h"
#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/log.h"

using namespace lmdbio;
using namespace lmdbio::compat;

namespace {

/// The companion as the engine's source of transaction ids.
struct CompanionSource {
  const Stock& stock;
  MDB_txn* companion;

  Status renew(std::uint64_t& txnid) const noexcept {
    stock.txn_reset(companion);
    if (const int rc = stock.txn_renew(companion); rc != 0) return as_status(rc);
    txnid = stock.txn_id(companion);
    return {};
  }
};

/// Logs why the meta pages show no readable transaction, and returns the error.
Status bad_metas(ReadTxn& t) noexcept {
  tree::MetaCopies copies;
  if (const Status st = t.env->engine->read_metas(copies); !st.ok()) return st;
  const std::byte* const(&metas)[2] = copies.records();
  const std::uint64_t a = tree::SharedWords::load(metas[0] + tree::detail::kAtTxnid),
                      b = tree::SharedWords::load(metas[1] + tree::detail::kAtTxnid);
  const std::uint64_t locked = t.companion != nullptr ? t.env->stock->txn_id(t.companion) : 0;
  if (locked > std::max(a, b))
    log_line(LogLevel::warn,
             "%s: the lock file is of transaction %" PRIu64 ", the data file of transaction %" PRIu64
             ": the data file was replaced while the lock file was in use; close all programs that use this "
             "database",
             t.env->stats.path.c_str(), locked, std::max(a, b));
  else
    log_line(LogLevel::warn, "%s: meta pages: transactions %" PRIu64 " and %" PRIu64 " are not consecutive",
             t.env->stats.path.c_str(), a, b);
  return Status::from_mdb(MDB_CORRUPTED);
}

/// Starts the engine on the newest snapshot that the metas show.
Status start_by_metas(ReadTxn& t) {
  for (;;) {
    const tree::Env::Metas metas = t.env->engine->metas();
    const tree::MetaSource source(metas.records);
    std::uint64_t txnid = 0;
    Status st = source.renew(txnid);
    if (st.ok()) st = t.txn.begin(txnid, source);
    // If a chunk has replaced these pages, writers no longer change them: try again with the new ones.
    if (st.ok() || t.env->engine->metas().records[0] == metas.records[0]) return st;
  }
}

/// Starts the engine on the snapshot that the companion has just taken, or without a companion on the newest
/// one.
Status start(ReadTxn& t) {
  Status st;
  if (!t.by_metas) [[likely]] {
    const CompanionSource source{*t.env->stock, t.companion};
    st = t.txn.begin(source.stock.txn_id(t.companion), source);
  } else if (!t.env->engine->unmapped()) {
    st = start_by_metas(t);
  } else {
    st = t.txn.begin_unmapped();
  }
  return st.raw() != MDB_BAD_TXN ? st : bad_metas(t);
}

/// Begins a companion, for a handle that has none to renew.
int begin_companion(ReadTxn& t) noexcept {
  int rc = 0;
  MDB_env* const real = companion(*t.env, rc);
  const AsyncSignalsBlocked fork_safe(has_own_threads());  // the real library allocates
  return real != nullptr ? t.env->stock->txn_begin(real, nullptr, MDB_RDONLY, &t.companion) : rc;
}

/// Called after stock refused a slot with `rc`.  Returns 0 if the transaction can go on: with the slot of a
/// dead process, or without a slot.
[[gnu::cold]] int without_slot(ReadTxn& t, int rc) noexcept {
  EnvHandle& e = *t.env;
  const Uncancelled wait;
  const AsyncSignalsBlocked fork_safe;
  if (!may_read_without_slot(e, rc)) return rc;
  if (MDB_env* const real = e.real.load(std::memory_order_relaxed);
      rc == MDB_READERS_FULL && real != nullptr) {
    int dead = 0;  // slots of processes that have ended
    if (e.stock->reader_check(real, &dead) == 0 && dead > 0) {
      const int again = t.companion != nullptr ? e.stock->txn_renew(t.companion) : begin_companion(t);
      if (again == 0) return 0;
    }
  }
  tell_without_slot(e, rc);
  e.stats.counters->without_slot.fetch_add(1, std::memory_order_relaxed);
  t.by_metas = true;
  t.unprotect();
  return 0;
}

/// Makes the companion release its snapshot.
void end_companion(ReadTxn& t) noexcept {
  const Stock& stock = *t.env->stock;
  if (t.companion == nullptr) return;
  if (t.env->keep_companions) {
    stock.txn_reset(t.companion);
  } else {
    const AsyncSignalsBlocked fork_safe(has_own_threads());
    stock.txn_abort(t.companion);
    t.companion = nullptr;
  }
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

/// Frees what stock frees when `t` ends: its descendants, and the cursors of write transactions.
void free_forward(ForwardTxn* t) noexcept {
  if (t->child != nullptr) free_forward(t->child);
  if (t->parent != nullptr) t->parent->child = nullptr;
  close_cursors(*t);
  t->env->stats.add(t->counters);
  t->tag = 0;
  delete t;
}

int begin_forward(EnvHandle& e, ForwardTxn* parent, unsigned flags, MDB_txn** ret) noexcept {
  EnvStats::show();
  auto* const t = new (std::nothrow) ForwardTxn;
  if (t == nullptr) return ENOMEM;
  const int rc = e.stock->txn_begin(e.passed(), parent != nullptr ? parent->real : nullptr, flags, &t->real);
  if (rc != 0) {
    delete t;
    return rc;
  }
  e.stats.counters->forwarded.txn.fetch_add(1, std::memory_order_relaxed);
  t->env = &e;
  t->read_only = (flags & MDB_RDONLY) != 0;
  if (parent != nullptr && !t->read_only) {
    t->parent = parent;
    parent->child = t;
  }
  *ret = give(t);
  return 0;
}

int begin_read(EnvHandle& e, MDB_txn** ret) {
  if (e.engine->window() == nullptr) return ENOMEM;  // not enough address space for the map size
  ReadTxn* t = e.take();
  if (t == nullptr) return ENOMEM;
  int rc = t->companion != nullptr ? e.stock->txn_renew(t->companion) : begin_companion(*t);
  if (rc == MDB_READERS_FULL && e.inherited) [[unlikely]] {
    t = e.with_slot_of_oldest(t);
    if (t->companion != nullptr) rc = e.stock->txn_renew(t->companion);
  }
  if (rc != 0) [[unlikely]] {
    rc = without_slot(*t, rc);
    if (rc != 0) {
      e.give_back(t);
      return rc;
    }
  } else if (e.lockless) [[unlikely]] {
    t->unprotect();
  }
  ++t->txn.counters().begun;
  if (const Status st = start(*t); !st.ok()) [[unlikely]] {
    // If the companion could not be renewed, for example because the map has grown, it has ended.
    end_companion(*t);
    t->by_metas = t->unprotected = false;
    e.give_back(t);
    return st.raw();
  }
  *ret = give(t);
  return 0;
}

/// Ends a transaction whose handle the program will not use again.
void end_read(ReadTxn* t, bool keep) noexcept {
  EnvHandle* const e = t->env;
  if (e == nullptr) {  // its environment was closed before
    t->txn.recycle();
    if (t->handle != nullptr) delete t;
    return;
  }
  if (t->unprotected) [[unlikely]]
    look_back(*t);
  t->by_metas = false;
  t->txn.end(keep);
  t->txn.recycle();
  end_companion(*t);
  e->give_back(t);
}

/// Continues a parked transaction on its snapshot, if it gets a reader slot again before a commit.
void go_on(ReadTxn& t, const TxnHandle& h) noexcept {
  t.txn.restore(h.saved);
  if (!h.saved.runs) return;
  EnvHandle& e = *t.env;
  if ((e.flags & MDB_NOLOCK) != 0 || h.by_metas || e.lockless) {
    t.by_metas = true;
    if ((e.flags & MDB_NOLOCK) != 0) return;
    t.unprotect();
    t.used_before = ~std::uint64_t{0};  // differs from any used(): it counts as used
    return;
  }
  const int rc = t.companion != nullptr ? e.stock->txn_renew(t.companion) : begin_companion(t);
  if (rc == 0 && e.stock->txn_id(t.companion) == h.saved.snapshot.txnid) return;
  if (rc == 0) end_companion(t);
  t.by_metas = true;
  t.txn.lose();
  if (!e.lost.exchange(true))
    log_line(LogLevel::warn,
             "%s: a forked process used an old transaction, which had given its reader slot to a newer one, "
             "and %s: MDB_BAD_TXN",
             e.stats.path.c_str(), rc == 0 ? "a writer has committed since" : "no reader slot is free");
}

}  // namespace

int compat::begin_lent(EnvHandle& e, const tree::Snapshot& snapshot, MDB_txn** ret) {
  ReadTxn* const t = e.take();
  if (t == nullptr) return ENOMEM;
  ++t->txn.counters().begun;
  t->by_metas = true;
  if (const Status st = t->txn.begin_at(snapshot); !st.ok()) {
    t->by_metas = false;
    e.give_back(t);
    return st.raw();
  }
  *ret = give(t);
  return 0;
}

ReadTxn* compat::txn_of_child(TxnHandle& h) noexcept {
  const std::uintptr_t owner = h.owner.load(std::memory_order_acquire);
  if (owner == TxnHandle::kNever || owner == this_thread()) [[likely]]
    return h.txn;
  const int saved = errno;
  const Uncancelled wait;
  const AsyncSignalsBlocked fork_safe;
  bool was_parked = false;
  ReadTxn* const t = h.env->adopt(h, was_parked);
  if (was_parked) go_on(*t, h);
  errno = saved;
  return t;
}

extern "C" {

LMDBIO_ABI int mdb_txn_begin(MDB_env* env, MDB_txn* parent, unsigned int flags, MDB_txn** txn) {
  EnvHandle* const e = as<EnvHandle>(env);
  if (e == nullptr) return LMDBIO_FORWARD(txn_begin, ENOSYS, env, parent, flags, txn);
  if (e->engine != nullptr) [[likely]] {
    if ((flags & MDB_RDONLY) == 0) return e->stock->read_only_error();
    return parent == nullptr ? begin_read(*e, txn) : EINVAL;  // a read-only transaction has no children
  }
  const ForwardTxn* const p = as<ForwardTxn>(parent);
  if (parent != nullptr && p == nullptr) return EINVAL;  // of another environment
  return begin_forward(*e, const_cast<ForwardTxn*>(p), flags, txn);
}

LMDBIO_ABI int mdb_txn_renew(MDB_txn* txn) {
  if (ReadTxn* const t = as<ReadTxn>(txn); t != nullptr) [[likely]] {
    if (t->env == nullptr) return EINVAL;
    if (t->by_metas && !t->txn.finished()) return EINVAL;
    if (t->env->engine->window() == nullptr) return ENOMEM;
    int rc = EINVAL;
    if (t->companion != nullptr) [[likely]]
      rc = t->env->stock->txn_renew(t->companion);
    else if (t->txn.finished())
      rc = begin_companion(*t);
    else
      return EINVAL;
    if (rc != 0) [[unlikely]] {
      if (!t->txn.finished()) return rc;
      rc = without_slot(*t, rc);
      if (rc != 0) return rc;
    } else if (t->env->lockless) [[unlikely]] {
      t->unprotect();
    }
    ++t->txn.counters().renewed;
    if (const Status st = start(*t); !st.ok()) [[unlikely]] {
      if (t->companion != nullptr) t->env->stock->txn_reset(t->companion);
      t->by_metas = t->unprotected = false;
      return st.raw();
    }
    return 0;
  }
  if (ForwardTxn* const t = as<ForwardTxn>(txn); t != nullptr) return t->env->stock->txn_renew(t->real);
  return LMDBIO_FORWARD(txn_renew, EINVAL, txn);
}

LMDBIO_ABI void mdb_txn_reset(MDB_txn* txn) {
  if (end_parked(txn, true)) [[unlikely]]
    return;
  if (ReadTxn* const t = as<ReadTxn>(txn); t != nullptr) [[likely]] {
    if (t->env == nullptr) return;
    if (t->unprotected) [[unlikely]]
      look_back(*t);
    t->txn.end(false);
    if (t->companion != nullptr) [[likely]]
      t->env->stock->txn_reset(t->companion);
    return;
  }
  if (ForwardTxn* const t = as<ForwardTxn>(txn); t != nullptr) return t->env->stock->txn_reset(t->real);
  return LMDBIO_FORWARD(txn_reset, void(), txn);
}

LMDBIO_ABI void mdb_txn_abort(MDB_txn* txn) {
  if (end_parked(txn, false)) [[unlikely]]
    return;
  if (ReadTxn* const t = as<ReadTxn>(txn); t != nullptr) [[likely]]
    return end_read(t, false);
  if (ForwardTxn* const t = as<ForwardTxn>(txn); t != nullptr) {
    t->env->stock->txn_abort(t->real);
    return free_forward(t);
  }
  return LMDBIO_FORWARD(txn_abort, void(), txn);
}

LMDBIO_ABI int mdb_txn_commit(MDB_txn* txn) {
  if (end_parked(txn, false)) [[unlikely]]
    return 0;
  if (ReadTxn* const t = as<ReadTxn>(txn); t != nullptr) {
    end_read(t, true);
    return 0;
  }
  if (ForwardTxn* const t = as<ForwardTxn>(txn); t != nullptr) {
    const int rc = t->env->stock->txn_commit(t->real);
    free_forward(t);  // stock frees it on failure as well
    return rc;
  }
  return LMDBIO_FORWARD(txn_commit, EINVAL, txn);
}

LMDBIO_ABI int mdb_txn_prepare(MDB_txn* txn) {
  if (const ReadTxn* const t = as<ReadTxn>(txn); t != nullptr) {
    const bool known = t->env == nullptr || t->env->stock->txn_prepare != nullptr;
    return known ? mdb_txn_commit(txn) : ENOSYS;  // stock ends a read-only transaction
  }
  if (ForwardTxn* const t = as<ForwardTxn>(txn); t != nullptr) {
    if (t->env->stock->txn_prepare == nullptr) return ENOSYS;
    constexpr int kPending = -30775;  // MDB_TXN_PENDING of 1.0's lmdb.h
    const int rc = t->env->stock->txn_prepare(t->real);
    if (rc == kPending) return rc;
    if (t->read_only || t->parent != nullptr) {  // stock has committed or, on failure, aborted it
      free_forward(t);
    } else {  // the program commits or aborts it, also on failure
      if (t->child != nullptr) free_forward(t->child);
      close_cursors(*t);
    }
    return rc;
  }
  return LMDBIO_FORWARD(txn_prepare, ENOSYS, txn);
}

LMDBIO_ABI MDB_env* mdb_txn_env(MDB_txn* txn) {
  if (const ReadTxn* const t = as<ReadTxn>(txn); t != nullptr) return give(t->env);
  if (const ForwardTxn* const t = as<ForwardTxn>(txn); t != nullptr) return give(t->env);
  return LMDBIO_FORWARD(txn_env, nullptr, txn);
}

LMDBIO_ABI size_t mdb_txn_id(MDB_txn* txn) {
  if (const ReadTxn* const t = as<ReadTxn>(txn); t != nullptr) {
    const bool ask =
        t->env != nullptr && t->companion != nullptr && !t->by_metas;  // its id includes failed renewals
    return ask ? t->env->stock->txn_id(t->companion) : t->txn.id();
  }
  if (const ForwardTxn* const t = as<ForwardTxn>(txn); t != nullptr) return t->env->stock->txn_id(t->real);
  return LMDBIO_FORWARD(txn_id, 0, txn);
}

}  // extern "C"
