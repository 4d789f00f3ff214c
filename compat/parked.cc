// Parked transactions of a forked child: their handles have no ReadTxn until the next call with them.
#include <memory>
#include <mutex>
#include <utility>

#include "compat/handle.h"
#include "compat/handle_lists.h"
#include "lmdbio/base/fork_safe_mutex.h"

namespace lmdbio::compat {

// Parks the oldest of the calling thread's transactions and returns its ReadTxn.  Returns nullptr if there
// are fewer than `least`.  May throw bad_alloc.
ReadTxn* EnvHandle::park_oldest(unsigned least) {
  make_stand_in();
  ReadTxn* t = nullptr;
  {
    const std::lock_guard lock(handles_mutex);
    t = oldest_of_thread(least);
    if (t == nullptr) return nullptr;
    park(*t);
  }
  if (t->companion != nullptr) stock->txn_reset(t->companion);
  return t;
}

// Returns the oldest of the calling thread's transactions that can be parked.  Returns nullptr if there are
// fewer than `least`.
ReadTxn* EnvHandle::oldest_of_thread(unsigned least) noexcept {
  const std::uintptr_t thread = this_thread();
  ReadTxn* oldest = nullptr;
  unsigned found = 0, looked = 0;
  for (ReadTxn* t = all_; t != nullptr && looked != kLook; t = t->next, ++looked) {
    if (!t->live.load(std::memory_order_acquire) ||
        t->handle->owner.load(std::memory_order_relaxed) != thread || !t->parkable())
      continue;
    if (oldest == nullptr || t->handle->began < oldest->handle->began) oldest = t;
    ++found;
  }
  return found >= least ? oldest : nullptr;
}

void EnvHandle::park(ReadTxn& t) noexcept {
  TxnHandle& h = *std::exchange(t.handle, nullptr);
  h.saved = t.txn.save();
  h.by_metas = t.by_metas;
  h.txn = nullptr;
  h.owner.store(TxnHandle::kParked, std::memory_order_release);
  add_to_list(parked_, h);
  t.live.store(false, std::memory_order_relaxed);
  t.by_metas = t.unprotected = false;
  t.txn.end(true);
  t.txn.recycle();
}

// May throw bad_alloc.
void EnvHandle::make_stand_in() {
  if (stand_in_.load() != nullptr) return;
  auto t = std::make_unique<ReadTxn>(*this, *engine);
  t->txn.recycle();
  t->counters.leave();
  t->txn.count_in(*t->counters);
  t->env = nullptr;
  if (ReadTxn* none = nullptr; stand_in_.compare_exchange_strong(none, t.get())) (void)t.release();
}

ReadTxn* EnvHandle::adopt(TxnHandle& h, bool& was_parked) noexcept {
  {
    const std::lock_guard lock(handles_mutex);
    was_parked = h.owner.load(std::memory_order_relaxed) == TxnHandle::kParked;
    if (!was_parked) {
      h.owner.store(TxnHandle::kNever, std::memory_order_relaxed);
      return h.txn;
    }
  }
  ReadTxn* t = nullptr;
  try {
    t = park_oldest(kLeastHeld);  // usually it has a reader slot
    if (t == nullptr) t = take_spare();
    if (t == nullptr) t = make();
  } catch (...) {
    was_parked = false;
    return stand_in_.load();
  }
  TxnHandle* spare = nullptr;
  {
    const std::lock_guard lock(handles_mutex);
    remove_from_list(parked_, h);
    spare = std::exchange(t->handle, &h);
    h.txn = t;
    h.began = begun_.fetch_add(1, std::memory_order_relaxed);
    h.owner.store(this_thread(), std::memory_order_relaxed);
    t->live.store(true, std::memory_order_release);
  }
  if (spare != nullptr) {
    spare->tag = 0;
    spare->drop();
  }
  return t;
}

ReadTxn* EnvHandle::with_slot_of_oldest(ReadTxn* t) noexcept {
  const AsyncSignalsBlocked fork_safe(has_own_threads());
  ReadTxn* of_oldest = nullptr;
  try {
    of_oldest = park_oldest(kLeastHeld + 1);  // `t` is one of them, and the newest
  } catch (...) {
  }
  if (of_oldest == nullptr) return t;
  {
    const std::lock_guard lock(handles_mutex);
    t->live.store(false, std::memory_order_relaxed);
    of_oldest->handle = std::exchange(t->handle, nullptr);
    of_oldest->handle->txn = of_oldest;
    of_oldest->live.store(true, std::memory_order_release);
  }
  give_back(t);
  return of_oldest;
}

bool EnvHandle::end_parked(TxnHandle& h, bool reset) noexcept {
  const std::lock_guard lock(handles_mutex);
  if (h.owner.load(std::memory_order_relaxed) != TxnHandle::kParked) return false;
  h.saved.runs = false;
  if (!reset) remove_from_list(parked_, h);
  return true;
}

bool end_parked(TxnHandle& h, bool reset) noexcept {
  const std::uintptr_t owner = h.owner.load(std::memory_order_acquire);
  const bool was_closed = owner == TxnHandle::kNever && h.txn->handle != &h;  // its environment was closed
  if (!was_closed && (owner != TxnHandle::kParked || !h.env->end_parked(h, reset))) return false;
  if (reset) return true;
  const AsyncSignalsBlocked fork_safe(has_own_threads());
  h.tag = 0;
  h.drop();
  return true;
}

}  // namespace lmdbio::compat
