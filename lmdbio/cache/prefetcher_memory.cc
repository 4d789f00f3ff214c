// The part of the Prefetcher that supplies private memory (cache/memory_source.h).
#include <algorithm>
#include <mutex>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/cache/io_worker.h"
#include "lmdbio/cache/prefetcher.h"

namespace lmdbio::cache {

void Prefetcher::join(MemoryUse use) noexcept {
  const std::lock_guard lock(mutex_);
  chunks_.budget().join(use);
}

void Prefetcher::leave(MemoryUse use) noexcept {
  const std::lock_guard lock(mutex_);
  chunks_.budget().leave(use);
}

bool Prefetcher::take(MemoryUse use, std::uint64_t bytes, Urgency urgency) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const bool looked = chunks_.budget().look_again_ns() != 0;
    const bool taken = chunks_.reserve(use, bytes, urgency);
    if (!looked && chunks_.budget().look_again_ns() != 0 && worker_ != nullptr) worker_->wake();
    if (taken) return true;
  }
  if (use != MemoryUse::prefetch) return false;  // readers ask each other for memory
  reclaim(bytes);
  const std::lock_guard lock(mutex_);
  return chunks_.reserve(use, bytes, urgency);
}

void Prefetcher::count(MemoryUse use, std::uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  chunks_.budget().take(use, bytes, 0);
}

void Prefetcher::give_back(MemoryUse use, std::uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  chunks_.give_back(use, bytes);
}

std::uint64_t Prefetcher::room_for_needs() noexcept {
  const std::lock_guard lock(mutex_);
  return chunks_.room_for_needs();
}

bool Prefetcher::could_take(MemoryUse use, std::uint64_t bytes, std::uint64_t of_readers) noexcept {
  const std::lock_guard lock(mutex_);
  return chunks_.could_take(use, bytes, of_readers);
}

std::uint64_t Prefetcher::beyond_guaranteed(MemoryUse use) noexcept {
  const std::lock_guard lock(mutex_);
  const MemoryBudget& budget = chunks_.budget();
  return budget.used(use) - std::min(budget.used(use), budget.guaranteed(use));
}

bool Prefetcher::pressed(MemoryUse use) noexcept {
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

void Prefetcher::reclaim(std::uint64_t bytes) noexcept {
  if (const Reclaim call = reclaim_.load(std::memory_order_acquire); call != nullptr) call(bytes);
}

}  // namespace lmdbio::cache
