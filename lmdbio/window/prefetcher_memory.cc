// The memory of the Prefetcher: supplied to others (gather/memory_source.h), and given back.
#include <algorithm>
#include <mutex>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/window/io_worker.h"
#include "lmdbio/window/prefetcher.h"

namespace lmdbio::window {

void Prefetcher::join(gather::MemoryUse use) noexcept {
  const std::lock_guard lock(mutex_);
  chunks_.budget().join(use);
}

void Prefetcher::leave(gather::MemoryUse use) noexcept {
  const std::lock_guard lock(mutex_);
  chunks_.budget().leave(use);
}

bool Prefetcher::take(gather::MemoryUse use, std::uint64_t bytes, gather::Urgency urgency) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const bool looked = chunks_.budget().look_again_ns() != 0;
    const bool taken = chunks_.reserve(use, bytes, urgency);
    if (!looked && chunks_.budget().look_again_ns() != 0 && worker_ != nullptr) worker_->wake();
    if (taken) return true;
  }
  if (use != gather::MemoryUse::prefetch) return false;  // readers ask each other for memory
  reclaim(bytes);
  const std::lock_guard lock(mutex_);
  return chunks_.reserve(use, bytes, urgency);
}

void Prefetcher::count(gather::MemoryUse use, std::uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  chunks_.budget().take(use, bytes, 0);
}

void Prefetcher::give_back(gather::MemoryUse use, std::uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  chunks_.give_back(use, bytes);
}

std::uint64_t Prefetcher::room_for_needs() noexcept {
  const std::lock_guard lock(mutex_);
  return chunks_.room_for_needs();
}

bool Prefetcher::could_take(gather::MemoryUse use, std::uint64_t bytes, std::uint64_t of_readers) noexcept {
  const std::lock_guard lock(mutex_);
  return chunks_.could_take(use, bytes, of_readers);
}

std::uint64_t Prefetcher::beyond_guaranteed(gather::MemoryUse use) noexcept {
  const std::lock_guard lock(mutex_);
  const gather::MemoryBudget& budget = chunks_.budget();
  return budget.used(use) - std::min(budget.used(use), budget.guaranteed(use));
}

bool Prefetcher::pressed(gather::MemoryUse use) noexcept {
  const std::lock_guard lock(mutex_);
  return chunks_.budget().pressed(use);
}

void Prefetcher::begin_wait() noexcept {
  const std::lock_guard lock(mutex_);
  chunks_.budget().begin_wait();
}

void Prefetcher::end_wait() noexcept {
  const std::lock_guard lock(mutex_);
  chunks_.budget().end_wait();
}

std::uint64_t Prefetcher::memory_used() noexcept {
  const std::lock_guard lock(mutex_);
  return chunks_.budget().used();
}

std::int64_t Prefetcher::look_at_memory() noexcept {
  std::uint64_t excess = 0;
  for (bool more = true; more;) {
    const std::lock_guard lock(mutex_);
    gather::MemoryBudget& budget = chunks_.budget();
    if (budget.look_again_ns() == 0) return 0;
    budget.look_if_needed(0);
    more = chunks_.shrink();
    excess = budget.excess();
  }
  if (excess != 0) reclaim(excess);
  const std::lock_guard lock(mutex_);
  return chunks_.budget().look_again_ns();
}

bool Prefetcher::memory_is_nearly_full() noexcept {
  const std::lock_guard lock(mutex_);
  return chunks_.budget().nearly_full();
}

void Prefetcher::reclaim(std::uint64_t bytes) noexcept {
  if (const Reclaim call = reclaim_.load(std::memory_order_acquire); call != nullptr) call(bytes);
}

}  // namespace lmdbio::window
