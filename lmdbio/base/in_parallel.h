// Calls a function for many numbers at once, in threads that end with the call.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/futex.h"

namespace lmdbio {

/// Calls body(i) for each i < n, in the calling thread and in up to `threads` - 1 others, which share its
/// descriptor table and block all signals.  Returns false in a child that was forked by a signal handler
/// meanwhile; the calls may then be incomplete.  body() must not throw.
template <class F>
bool in_parallel(std::size_t n, unsigned threads, F&& body) noexcept {
  struct Work {
    std::atomic<std::size_t> next{0};
    std::atomic<unsigned> running{0};
    EventCount ended;
    std::size_t n;
    std::remove_reference_t<F>* body;
    void run() noexcept {
      for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) (*body)(i);
    }
  };
  std::shared_ptr<Work> work;
  try {
    work = std::make_shared<Work>();
  } catch (const std::bad_alloc&) {
    for (std::size_t i = 0; i < n; ++i) body(i);
    return true;
  }
  work->n = n;
  work->body = &body;
  const pid_t self = ::getpid();
  sigset_t all, before;
  (void)::sigfillset(&all);
  (void)::pthread_sigmask(SIG_SETMASK, &all, &before);  // signal handlers run on the program's threads
  for (std::size_t t = 1; t < std::min<std::size_t>(n, threads); ++t) {
    auto* const own = new (std::nothrow) std::shared_ptr<Work>(work);
    if (own == nullptr) break;
    note_own_thread();
    work->running.fetch_add(1);
    pthread_t thread;
    const auto run = [](void* its) -> void* {
      (void)::pthread_setname_np(::pthread_self(), "lmdbio-open");
      const std::unique_ptr<std::shared_ptr<Work>> w(static_cast<std::shared_ptr<Work>*>(its));
      (*w)->run();
      (*w)->running.fetch_sub(1);
      (*w)->ended.notify();
      return nullptr;
    };
    if (::pthread_create(&thread, nullptr, run, own) == 0) {
      (void)::pthread_detach(thread);
      continue;
    }
    work->running.fetch_sub(1);
    delete own;
    break;
  }
  (void)::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  work->run();
  for (;;) {
    constexpr std::int64_t kPoll = 250'000'000;
    const std::uint32_t seen = work->ended.now();
    if (::getpid() != self) return false;
    if (work->running.load() == 0) break;
    const AsyncSignalsAllowed program;
    work->ended.wait(seen, kPoll);
  }
  return true;
}

}  // namespace lmdbio
