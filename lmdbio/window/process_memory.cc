#include "lmdbio/window/process_memory.h"

#include <algorithm>
#include <mutex>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/window/io_worker.h"

namespace lmdbio::window {

void ProcessMemory::join(gather::MemoryUse use) noexcept {
  const std::lock_guard lock(mutex_);
  chunks_.budget().join(use);
}

void ProcessMemory::leave(gather::MemoryUse use) noexcept {
  const std::lock_guard lock(mutex_);
  chunks_.budget().leave(use);
}

bool ProcessMemory::take(gather::MemoryUse use, std::uint64_t bytes, gather::Urgency urgency) noexcept {
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

void ProcessMemory::count(gather::MemoryUse use, std::uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  chunks_.budget().take(use, bytes, 0);
}

void ProcessMemory::give_back(gather::MemoryUse use, std::uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  chunks_.give_back(use, bytes);
}

std::uint64_t ProcessMemory::room_for_needs() noexcept {
  const std::lock_guard lock(mutex_);
  return chunks_.room_for_needs();
}

bool ProcessMemory::could_take(gather::MemoryUse use, std::uint64_t bytes,
                               std::uint64_t of_readers) noexcept {
  const std::lock_guard lock(mutex_);
  return chunks_.could_take(use, bytes, of_readers);
}

std::uint64_t ProcessMemory::beyond_guaranteed(gather::MemoryUse use) noexcept {
  const std::lock_guard lock(mutex_);
  const gather::MemoryBudget& budget = chunks_.budget();
  return budget.used(use) - std::min(budget.used(use), budget.guaranteed(use));
}

bool ProcessMemory::pressed(gather::MemoryUse use) noexcept {
  const std::lock_guard lock(mutex_);
  return chunks_.budget().pressed(use);
}

void ProcessMemory::begin_wait() noexcept {
  const std::lock_guard lock(mutex_);
  chunks_.budget().begin_wait();
}

void ProcessMemory::end_wait() noexcept {
  const std::lock_guard lock(mutex_);
  chunks_.budget().end_wait();
}

std::uint64_t ProcessMemory::used() noexcept {
  const std::lock_guard lock(mutex_);
  return chunks_.budget().used();
}

std::int64_t ProcessMemory::look() noexcept {
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

bool ProcessMemory::is_nearly_full() noexcept {
  const std::lock_guard lock(mutex_);
  return chunks_.budget().nearly_full();
}

void ProcessMemory::reclaim(std::uint64_t bytes) noexcept {
  if (const Reclaim call = reclaim_.load(std::memory_order_acquire); call != nullptr) call(bytes);
}

}  // namespace lmdbio::window
