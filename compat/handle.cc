#include "compat/handle.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <new>
#include <numeric>

#include "compat/companion.h"
#include "compat/handle_lists.h"
#include "lmdbio/base/fork_safe_mutex.h"

namespace lmdbio::compat {

constinit SignalSafeMutex handles_mutex;
constinit EnvHandle* served_environments = nullptr;

void lock_handles() noexcept { handles_mutex.lock(); }
void unlock_handles() noexcept { handles_mutex.unlock(); }

ForwardCursor::ForwardCursor(ForwardTxn& t, MDB_cursor* of_real) noexcept
    : real(of_real), stock(t.env->stock), env(t.env) {
  attach(t);
}

void ForwardCursor::attach(ForwardTxn& t) noexcept {
  owner = &t;
  owner_handle = give(&t);
  next = t.cursors;
  link = &t.cursors;
  if (next != nullptr) next->link = &next;
  t.cursors = this;
}

void ForwardCursor::detach() noexcept {
  if (link == nullptr) return;
  *link = next;
  if (next != nullptr) next->link = link;
  link = nullptr;
  next = nullptr;
  owner = nullptr;
}

void ForwardCursor::count(std::uint64_t ForwardCounters::*which) noexcept {
  if (owner != nullptr)
    owner->env->stats.count(counters, which);
  else
    ++(counters.*which);
}

std::uint64_t ReadTxn::used() const noexcept {
  const tree::Counters& n = txn.counters();
  return std::accumulate(std::begin(n.cursor_op), std::end(n.cursor_op), n.get);
}

std::size_t EnvHandle::spare_index() noexcept {
  // The address of the thread's control block differs by thread, and is read from a register.
  static_assert(kPlaces == 64);
  return (this_thread() >> 6) * 0x9E3779B97F4A7C15u >> 58;
}

ReadTxn::ReadTxn(EnvHandle& e, tree::Env& engine)
    : env(&e),
      counters({node::CellKind::calls, node::CounterBoard::number_of(e.stats.counters.on_board())}),
      txn(engine) {
  txn.count_in(*counters);
}

ReadTxn::~ReadTxn() {
  if (handle == nullptr) return;
  handle->tag = 0;  // no longer a handle of ours
  handle->drop();
}

ReadTxn* EnvHandle::take_spare() noexcept {
  const std::size_t home = spare_index();
  for (unsigned i = 0; i < kProbes; ++i) {
    std::atomic<ReadTxn*>& place = spare_[(home + i) % kPlaces].txn;
    if (place.load(std::memory_order_relaxed) == nullptr) continue;
    if (ReadTxn* const t = place.exchange(nullptr, std::memory_order_acquire); t != nullptr) [[likely]]
      return t;
  }
  if (any_more_.load(std::memory_order_relaxed)) {
    const std::lock_guard lock(handles_mutex);
    if (ReadTxn* const t = more_spare_; t != nullptr) {
      more_spare_ = t->next_spare;
      any_more_.store(more_spare_ != nullptr, std::memory_order_relaxed);
      return t;
    }
  }
  return nullptr;
}

ReadTxn* EnvHandle::take() noexcept {
  EnvStats::show();
  ReadTxn* t = take_spare();
  if (t == nullptr || t->handle == nullptr) [[unlikely]] {
    t = with_handle(t);
    if (t == nullptr) return nullptr;
  }
  if (inherited) [[unlikely]] {
    t->handle->tag = kChildTxnTag;
    t->handle->began = begun_.fetch_add(1, std::memory_order_relaxed);
    t->handle->owner.store(this_thread(), std::memory_order_relaxed);
  }
  t->live.store(true, std::memory_order_release);  // oldest_of_thread() then sees its owner
  return t;
}

// Makes a handle for `t` unless it has one; if `t` is null, for another ReadTxn.  Returns the ReadTxn, or
// nullptr if memory is short.
ReadTxn* EnvHandle::with_handle(ReadTxn* t) noexcept {
  const AsyncSignalsBlocked fork_safe(has_own_threads());
  try {
    if (t == nullptr) t = make();
    if (t->handle == nullptr) t->handle = new TxnHandle(this, t);
    return t;
  } catch (...) {
    if (t != nullptr) give_back(t);
    return nullptr;
  }
}

// Returns a ReadTxn without a handle: one that was parked, or a new one.  May throw bad_alloc.
ReadTxn* EnvHandle::make() {
  if (inherited)
    if (ReadTxn* const t = park_oldest(kMostHeld); t != nullptr) return t;
  auto* const t = new ReadTxn(*this, *engine);
  const std::lock_guard lock(handles_mutex);
  add_to_list(all_, *t);
  return t;
}

void EnvHandle::give_back(ReadTxn* t) noexcept {
  t->live.store(false, std::memory_order_relaxed);
  const std::size_t home = spare_index();
  for (unsigned i = 0; i < kProbes; ++i) {
    std::atomic<ReadTxn*>& place = spare_[(home + i) % kPlaces].txn;
    if (place.load(std::memory_order_relaxed) != nullptr) continue;
    ReadTxn* none = nullptr;
    if (place.compare_exchange_strong(none, t, std::memory_order_release, std::memory_order_relaxed))
        [[likely]]
      return;
  }
  const std::lock_guard lock(handles_mutex);
  t->next_spare = more_spare_;
  more_spare_ = t;
  any_more_.store(true, std::memory_order_relaxed);
}

// Removes a ReadTxn from the list and keeps its counters.
void EnvHandle::forget(ReadTxn* t) noexcept {
  const std::lock_guard lock(handles_mutex);
  stats.counters->ended.add(t->txn.counters());
  remove_from_list(all_, *t);
}

void EnvHandle::close_transactions() noexcept {
  {
    const std::lock_guard lock(handles_mutex);
    if (prev != nullptr || served_environments == this) remove_from_list(served_environments, *this);
  }
  for (Spare& s : spare_) s.txn.store(nullptr, std::memory_order_relaxed);
  ReadTxn* const stand_in = stand_in_.exchange(nullptr);
  if (parked_ == nullptr) delete stand_in;
  for (; parked_ != nullptr; remove_from_list(parked_, *parked_)) {
    parked_->txn = stand_in;
    parked_->owner.store(TxnHandle::kNever, std::memory_order_release);
  }
  while (all_ != nullptr) {
    ReadTxn* const t = all_;
    const bool live = t->live.load(std::memory_order_relaxed);
    forget(t);
    if (live) {
      if (t->unprotected) look_back(*t);
      // The memory of the transaction stays, as with stock: it is freed when the program aborts it.
      t->txn.end(false);
      t->txn.recycle();
      t->counters.leave();
      t->txn.count_in(*t->counters);
      t->env = nullptr;
      t->handle->owner.store(TxnHandle::kNever, std::memory_order_relaxed);
    } else {
      if (t->companion != nullptr) stock->txn_abort(t->companion);
      delete t;
    }
  }
}

void EnvHandle::serve() noexcept {
  const std::lock_guard lock(handles_mutex);
  add_to_list(served_environments, *this);
}

// Called with the mutex held, by the only thread of a forked child.
void EnvHandle::forget_companions() noexcept {
  inherited = true;
  for (ReadTxn* t = all_; t != nullptr; t = t->next) {
    // These handles are never parked: the parent may have opened cursors, which `refs` does not count.
    if (t->handle != nullptr) t->handle->owner.store(TxnHandle::kNever, std::memory_order_relaxed);
    t->companion = nullptr;
    t->by_metas = t->live.load(std::memory_order_relaxed) && !t->txn.finished();
    if (t->by_metas)
      t->unprotect();
    else
      t->unprotected = false;
  }
}

void EnvHandle::forget_counters() noexcept {
  stats.counters->ended = {};
  stats.counters->closed_readers = {};
  stats.readers.clear();
  for (ReadTxn* t = all_; t != nullptr; t = t->next) {
    t->txn.counters() = {};
    t->used_before = 0;
  }
  stats::Forwarded& forwarded = stats.counters->forwarded;
  for (std::atomic<std::uint64_t>* const n : {&forwarded.get, &forwarded.cursor_get, &forwarded.write,
                                              &forwarded.txn, &stats.counters->without_slot})
    n->store(0, std::memory_order_relaxed);
}

bool EnvHandle::idle() noexcept {
  const std::lock_guard lock(handles_mutex);
  for (const ReadTxn* t = all_; t != nullptr; t = t->next) {
    if (!t->txn.finished()) return false;
  }
  for (const TxnHandle* h = parked_; h != nullptr; h = h->next) {
    if (h->saved.runs) return false;
  }
  return true;
}

TxnHandle* EnvHandle::live_among(std::span<const std::uintptr_t> words) noexcept {
  const auto among = [words](const TxnHandle* h) {
    return std::find(words.begin(), words.end(), reinterpret_cast<std::uintptr_t>(h)) != words.end();
  };
  for (ReadTxn* t = all_; t != nullptr; t = t->next)
    if (t->live.load(std::memory_order_relaxed) && among(t->handle)) return t->handle;
  for (TxnHandle* h = parked_; h != nullptr; h = h->next)
    if (among(h)) return h;
  return nullptr;
}

bool EnvHandle::has_live() const noexcept {
  if (parked_ != nullptr) return true;
  for (const ReadTxn* t = all_; t != nullptr; t = t->next)
    if (t->live.load(std::memory_order_relaxed)) return true;
  return false;
}

tree::Counters EnvHandle::read_counters() noexcept {
  const std::lock_guard lock(handles_mutex);
  tree::Counters sum = stats.counters->ended;
  for (const ReadTxn* t = all_; t != nullptr; t = t->next) sum.add(t->txn.counters());
  return sum;
}

}  // namespace lmdbio::compat
