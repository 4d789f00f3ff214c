#include "compat/lifecycle.h"

#include <pthread.h>

#include <atomic>

#include "compat/companion.h"
#include "compat/handle.h"
#include "compat/stats.h"
#include "compat/stock.h"

namespace lmdbio::compat {

namespace {

constinit std::atomic<bool> registered{false};

// No other thread holds a lock of ours at the fork, so the child finds them free.  Ranks: docs/concurrency.md.
void before_fork() {
  lock_stats();
  lock_handles();
  lock_stock();
}
void after_fork() {
  unlock_stock();
  unlock_handles();
  unlock_stats();
}

void after_fork_in_child() {
  forget_companions();
  stats_after_fork();
  after_fork();
}

}  // namespace

void first_use() noexcept {
  if (registered.load(std::memory_order_relaxed) || registered.exchange(true)) return;
  (void)::pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

}  // namespace lmdbio::compat
