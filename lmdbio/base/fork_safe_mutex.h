// fork() in a signal handler that interrupts this library.  The fork handlers take locks of ours, and with a
// second thread in the process fork() takes malloc's: if the interrupted code held one of them, fork() would
// never return.  So a thread that holds such a lock, or allocates in a slow path, blocks signals meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace lmdbio {

namespace detail {

/// Of a thread.  The mask belongs to the outermost of what blocks; what is nested only counts, so that locks
/// may be released in any order.
struct SignalBlocking {
  unsigned depth = 0;
  std::uint64_t before = 0;  ///< the thread's mask, while depth is not 0
};
extern thread_local constinit SignalBlocking signal_blocking;
extern constinit std::atomic<bool> own_threads;

/// Blocks all asynchronous signals and returns the mask as it was.
std::uint64_t block_async_signals() noexcept;
void set_signal_mask(std::uint64_t mask) noexcept;

// Not inline: what need not block is to pay one branch.
[[gnu::cold]] void begin_blocking() noexcept;
[[gnu::cold]] void end_blocking() noexcept;

}  // namespace detail

/// Blocks asynchronous signals in the calling thread for as long as it lives; may be nested.  Signals that
/// the thread's own instructions raise (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS) are not
/// blocked.  Not around code of the program's: callbacks, comparators.
class AsyncSignalsBlocked {
 public:
  explicit AsyncSignalsBlocked(bool wanted = true) noexcept : wanted_(wanted) {
    if (wanted_) detail::begin_blocking();
  }
  AsyncSignalsBlocked(const AsyncSignalsBlocked&) = delete;
  AsyncSignalsBlocked& operator=(const AsyncSignalsBlocked&) = delete;
  ~AsyncSignalsBlocked() {
    if (wanted_) detail::end_blocking();
  }

  /// The calling thread is inside of one, or holds a SignalSafeMutex.
  static bool active() noexcept { return detail::signal_blocking.depth != 0; }

 private:
  const bool wanted_;
};

/// Inside of AsyncSignalsBlocked: gives the thread its own mask back for as long as it lives.  For waits and
/// callbacks, with no SignalSafeMutex held.  Handlers run meanwhile and may fork: state that a child needs
/// has to be consistent, and after it the caller may be in that child.  Without effect elsewhere.
class AsyncSignalsAllowed {
 public:
  AsyncSignalsAllowed() noexcept : outer_(detail::signal_blocking) {
    if (outer_.depth == 0) return;
    detail::signal_blocking.depth = 0;
    detail::set_signal_mask(outer_.before);
  }
  AsyncSignalsAllowed(const AsyncSignalsAllowed&) = delete;
  AsyncSignalsAllowed& operator=(const AsyncSignalsAllowed&) = delete;
  ~AsyncSignalsAllowed() {
    if (outer_.depth == 0) return;
    outer_.before = detail::block_async_signals();  // a handler or a callback may have changed it
    detail::signal_blocking = outer_;
  }

 private:
  detail::SignalBlocking outer_;
};

/// A mutex that fork handlers may take: its holder blocks asynchronous signals.  For std::lock_guard and
/// std::unique_lock.  In a forked child the thread that held it unlocks it and gets its own mask back.
class SignalSafeMutex {
 public:
  constexpr SignalSafeMutex() noexcept = default;
  SignalSafeMutex(const SignalSafeMutex&) = delete;
  SignalSafeMutex& operator=(const SignalSafeMutex&) = delete;
  void lock() noexcept {
    detail::begin_blocking();
    mutex_.lock();
  }
  void unlock() noexcept {
    mutex_.unlock();
    detail::end_blocking();
  }

 private:
  std::mutex mutex_;
};

/// Called before a thread of ours is started.
inline void note_own_thread() noexcept { detail::own_threads.store(true, std::memory_order_relaxed); }
/// A thread of ours was started: from then on fork() takes malloc's locks, which it would not do in a program
/// of one thread.  What allocates outside of slow paths asks, since blocking signals is two system calls.
inline bool has_own_threads() noexcept { return detail::own_threads.load(std::memory_order_relaxed); }

}  // namespace lmdbio
