#include "compat/lifecycle.h"

#include <pthread.h>

#include <atomic>

#include "compat/companion.h"
#include "compat/handle.h"
#include "compat/stats.h"
#include "compat/stock.h"
#include "lmdbio/cache/prefetcher.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/io/private_table.h"
#include "lmdbio/node/counter_board.h"
#include "lmdbio/node/table.h"

namespace lmdbio::compat {

namespace {

constinit std::atomic<bool> registered{false};
constinit cache::Prefetcher* prefetcher = nullptr;  ///< as it was at the fork; under the other locks

// No other thread holds a lock of ours at the fork, so the child finds them free.  Ranks:
// docs/concurrency.md.
void before_fork() {
  lock_stats();
  lock_handles();
  lock_stock();
  cache::lock_shared_windows();
  OpenFile::lock_registry();
  node::Table::lock_registry();
  cache::Prefetcher::lock_creation();
  prefetcher = cache::Prefetcher::existing();
  if (prefetcher != nullptr) prefetcher->lock();
  node::CounterBoard::lock();
}
void unlock_others() {
  cache::Prefetcher::unlock_creation();
  node::Table::unlock_registry();
  OpenFile::unlock_registry();
  cache::unlock_shared_windows();
  unlock_stock();
  unlock_handles();
  unlock_stats();
}
void after_fork() {
  node::CounterBoard::unlock();
  if (prefetcher != nullptr) prefetcher->unlock();
  unlock_others();
}

void after_fork_in_child() {
  node::CounterBoard::after_fork_in_child();
  node::CounterBoard::unlock();
  // First, so that the child pins as little of the parent's memory as can be.
  if (prefetcher != nullptr) prefetcher->after_fork_in_child();
  node::Table::forget_all();
  forget_companions();
  stats_after_fork();
  // What the child does with a transaction of its parent's is counted by no call that could show the board.
  for_each_served([](const EnvHandle& env) {
    if (env.has_live()) node::CounterBoard::show();
  });
  unlock_others();
}

// Before the program has threads.  A fork while another thread makes the first use of the library would run
// without handlers that are registered then, and the child may need what that thread has locked.  A program
// may bind threads later, and the one that happens to start ours.
[[gnu::constructor]] void loaded(int, char**, char** environment) noexcept {
  first_use();
  remember_affinity();
  stats_loaded(environment);
}

// Most programs close nothing.
[[gnu::destructor]] void ends() noexcept {
  node::Table::leave_all();
  stats_ends();
}

}  // namespace

void first_use() noexcept {
  if (registered.load(std::memory_order_relaxed) || registered.exchange(true)) return;
  (void)::pthread_atfork(before_fork, after_fork, after_fork_in_child);
  (void)PrivateTable::watch_forks();
}

}  // namespace lmdbio::compat
