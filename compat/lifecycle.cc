#include "compat/lifecycle.h"

#include <pthread.h>

#include <atomic>

#include "compat/companion.h"
#include "compat/handle.h"
#include "compat/stats.h"
#include "compat/stock.h"
#include "lmdbio/cache/image.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/io/private_table.h"
#include "lmdbio/node/counter_board.h"
#include "lmdbio/node/service.h"
#include "lmdbio/node/table.h"
#include "lmdbio/window/prefetcher.h"

namespace lmdbio::compat {

namespace {

constinit std::atomic<bool> registered{false};
constinit window::Prefetcher* prefetcher = nullptr;  ///< as of the fork; guarded by the other locks

// The forking thread holds all our locks during the fork, and unlocks them in the parent and in the child.
// Lock order: docs/concurrency.md.
void before_fork() {
  lock_stats();
  lock_handles();
  lock_stock();
  window::lock_shared_windows();
  cache::lock_images();
  OpenFile::lock_registry();
  node::Table::lock_registry();
  node::Service::lock_registry();
  window::Prefetcher::lock_creation();
  prefetcher = window::Prefetcher::existing();
  if (prefetcher != nullptr) prefetcher->lock();
  node::CounterBoard::lock();
}
void unlock_others() {
  window::Prefetcher::unlock_creation();
  node::Service::unlock_registry();
  node::Table::unlock_registry();
  OpenFile::unlock_registry();
  cache::unlock_images();
  window::unlock_shared_windows();
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
  // Do this early, so that the child pins as little of the parent's memory as possible.
  if (prefetcher != nullptr) prefetcher->after_fork_in_child();
  node::Table::forget_all();
  node::Service::forget_all();
  forget_companions();
  stats_after_fork();
  // Calls that only continue a transaction of the parent do not show the counter board, so show it here.
  for_each_served([](const EnvHandle& env) {
    if (env.has_live()) node::CounterBoard::show();
  });
  unlock_others();
}

// Runs before the program has threads.  Otherwise another thread might register the fork handlers during a
// fork, which would not run them, and the child might need locks that the registering thread holds.  Records
// the affinity now, because a program may later bind its threads, including the one that starts ours.
[[gnu::constructor]] void loaded(int, char**, char** environment) noexcept {
  first_use();
  remember_affinity();
  stats_loaded(environment);
}

// Leaves the tables here, because most programs close no environment.
[[gnu::destructor]] void ends() noexcept {
  node::Table::leave_all();
  cache::Image::flush_all();
  stats_ends();
}

}  // namespace

void first_use() noexcept {
  if (registered.load(std::memory_order_relaxed) || registered.exchange(true)) return;
  (void)::pthread_atfork(before_fork, after_fork, after_fork_in_child);
  (void)PrivateTable::watch_forks();
}

}  // namespace lmdbio::compat
