#include "compat/handle.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <new>
#include <numeric>

#include "compat/companion.h"
#include "lmdbio/base/fork_safe_mutex.h"

namespace lmdbio::compat {

namespace {
constinit SignalSafeMutex mutex;

template <class T>
void link(T*& first, T& t) noexcept {
  t.next = first;
  if (first != nullptr) first->prev = &t;
  first = &t;
}
template <class T>
void unlink(T*& first, T& t) noexcept {
  (t.prev != nullptr ? t.prev->next : first) = t.next;
  if (t.next != nullptr) t.next->prev = t.prev;
  t.next = t.prev = nullptr;
}

}  // namespace

constinit EnvHandle* served_environments = nullptr;

void lock_handles() noexcept { mutex.lock(); }
void unlock_handles() noexcept { mutex.unlock(); }

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
  const db::Counters& n = txn.counters();
  return std::accumulate(std::begin(n.cursor_op), std::end(n.cursor_op), n.get);
}

std::size_t EnvHandle::spare_index() noexcept {
  // The thread's control block: an address that differs by thread, read from a register.
  const auto self = reinterpret_cast<std::uintptr_t>(__builtin_thread_pointer());
  static_assert(kPlaces == 64);
  return (self >> 6) * 0x9E3779B97F4A7C15u >> 58;
}

ReadTxn::ReadTxn(EnvHandle& e, db::Env& engine)
    : env(&e),
      handle(nullptr),
      counters({node::CellKind::calls, node::CounterBoard::number_of(e.stats.counters.on_board())}),
      txn(engine) {
  txn.count_in(*counters);
  handle = new TxnHandle(&e, this);
}

ReadTxn::~ReadTxn() {
  if (handle == nullptr) return;
  handle->tag = 0;  // a call with it would be the real library's
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
    const std::lock_guard lock(mutex);
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
  if (t == nullptr) [[unlikely]]
    t = make();
  if (t == nullptr) [[unlikely]]
    return nullptr;
  if (inherited) [[unlikely]] {
    t->handle->tag = kChildTxnTag;
    t->handle->owner.store(this_thread(), std::memory_order_relaxed);
  }
  t->live.store(true, std::memory_order_relaxed);
  return t;
}

// Another one, or that of a handle which the program seems to have abandoned.
ReadTxn* EnvHandle::make() noexcept {
  const AsyncSignalsBlocked fork_safe(has_own_threads());
  try {
    if (inherited) {
      auto handle = std::make_unique<TxnHandle>(this, nullptr);
      make_stand_in();
      const std::lock_guard lock(mutex);
      const bool ends = ended_.load(std::memory_order_relaxed) >= kFewEnded;
      if (ReadTxn* const t = oldest_of_thread(ends ? kMostHeld : kMostAbandoned); t != nullptr) {
        park(*t);
        handle->txn = t;
        t->handle = handle.release();
        unlink(all_, *t);
        link(all_, *t);
        return t;
      }
    }
    auto* const t = new ReadTxn(*this, *engine);
    const std::lock_guard lock(mutex);
    link(all_, *t);
    return t;
  } catch (...) {
    return nullptr;
  }
}

// Of those that the calling thread began and that can be parked, if there are `most`, else null.
ReadTxn* EnvHandle::oldest_of_thread(unsigned most) noexcept {
  const std::uintptr_t thread = this_thread();
  ReadTxn* oldest = nullptr;
  unsigned found = 0, looked = 0;
  for (ReadTxn* t = all_; t != nullptr && looked != kLook; t = t->next, ++looked) {
    if (!t->live.load(std::memory_order_relaxed) ||
        t->handle->owner.load(std::memory_order_relaxed) != thread || !t->parkable())
      continue;
    oldest = t;
    ++found;
  }
  return found >= most ? oldest : nullptr;
}

// Its slot is another's then.
void EnvHandle::park(ReadTxn& t) noexcept {
  TxnHandle& h = *t.handle;
  h.saved = t.txn.save();
  h.by_metas = t.by_metas;
  h.owner.store(TxnHandle::kParked, std::memory_order_release);
  h.txn = nullptr;
  link(parked_, h);
  t.by_metas = t.unprotected = false;
  t.txn.end(true);
  t.txn.recycle();
  if (t.companion != nullptr) stock->txn_reset(t.companion);
}

// May throw bad_alloc.
void EnvHandle::make_stand_in() {
  if (stand_in_.load() != nullptr) return;
  auto t = std::make_unique<ReadTxn>(*this, *engine);
  t->txn.recycle();
  t->counters.leave();
  t->txn.count_in(*t->counters);
  t->env = nullptr;
  t->handle->drop();
  t->handle = nullptr;
  if (ReadTxn* none = nullptr; stand_in_.compare_exchange_strong(none, t.get())) (void)t.release();
}

ReadTxn* EnvHandle::use_elsewhere(TxnHandle& h, bool& was_parked) noexcept {
  {
    const std::lock_guard lock(mutex);
    was_parked = h.owner.load(std::memory_order_relaxed) == TxnHandle::kParked;
    if (!was_parked) {
      h.owner.store(TxnHandle::kNever, std::memory_order_relaxed);
      return h.txn;
    }
  }
  ReadTxn* t = take_spare();
  try {
    if (t == nullptr) {
      t = new ReadTxn(*this, *engine);
      const std::lock_guard lock(mutex);
      link(all_, *t);
    }
  } catch (...) {
    was_parked = false;
    return stand_in_.load();
  }
  t->handle->tag = 0;
  t->handle->drop();
  const std::lock_guard lock(mutex);
  unlink(parked_, h);
  h.txn = t;
  h.owner.store(this_thread(), std::memory_order_relaxed);
  t->handle = &h;
  t->live.store(true, std::memory_order_relaxed);
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
  const std::lock_guard lock(mutex);
  t->next_spare = more_spare_;
  more_spare_ = t;
  any_more_.store(true, std::memory_order_relaxed);
}

// Out of the list; its counters stay.
void EnvHandle::forget(ReadTxn* t) noexcept {
  const std::lock_guard lock(mutex);
  stats.counters->ended.add(t->txn.counters());
  unlink(all_, *t);
}

void EnvHandle::close_transactions() noexcept {
  {
    const std::lock_guard lock(mutex);
    if (prev_served != nullptr)
      prev_served->next_served = next_served;
    else if (served_environments == this)
      served_environments = next_served;
    if (next_served != nullptr) next_served->prev_served = prev_served;
    next_served = prev_served = nullptr;
  }
  for (Spare& s : spare_) s.txn.store(nullptr, std::memory_order_relaxed);
  ReadTxn* const stand_in = stand_in_.exchange(nullptr);
  if (parked_ == nullptr) delete stand_in;
  for (; parked_ != nullptr; unlink(parked_, *parked_)) {
    parked_->txn = stand_in;
    parked_->owner.store(TxnHandle::kNever, std::memory_order_release);
  }
  while (all_ != nullptr) {
    ReadTxn* const t = all_;
    const bool live = t->live.load(std::memory_order_relaxed);
    forget(t);
    if (live) {
      if (t->unprotected) look_back(*t);
      // Stock leaves its memory behind too; abort and close find it harmless.
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
  const std::lock_guard lock(mutex);
  next_served = served_environments;
  if (next_served != nullptr) next_served->prev_served = this;
  served_environments = this;
}

// Called with the mutex held, by the only thread of a forked child.
void EnvHandle::forget_companions() noexcept {
  inherited = true;
  ended_.store(0, std::memory_order_relaxed);
  for (ReadTxn* t = all_; t != nullptr; t = t->next) {
    // The parent may have opened cursors, which nobody counted.
    t->handle->owner.store(TxnHandle::kNever, std::memory_order_relaxed);
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
  const std::lock_guard lock(mutex);
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

db::Counters EnvHandle::read_counters() noexcept {
  const std::lock_guard lock(mutex);
  db::Counters sum = stats.counters->ended;
  for (const ReadTxn* t = all_; t != nullptr; t = t->next) sum.add(t->txn.counters());
  return sum;
}

}  // namespace lmdbio::compat
