// Makes it safe for a signal handler to call fork() after it has interrupted this library.  The fork handlers
// take locks of this library.  If the process has a second thread, fork() also takes the locks of malloc.  If
// the interrupted code held one of these locks, fork() would never return.  A thread therefore blocks signals
// while it holds one of these locks, and while it allocates memory in a slow path.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace lmdbio {

namespace detail {

/// The state of a thread that blocks signals.  The outermost object that blocks signals saves the mask, and
/// nested objects only change the depth.  Locks may therefore be released in any order.
struct SignalBlocking {
  unsigned depth = 0;
  std::uint64_t before = 0;  ///< the thread's own signal mask; valid while depth is not 0
};
extern thread_local constinit SignalBlocking signal_blocking;
extern constinit std::atomic<bool> own_threads;

/// Blocks all asynchronous signals and returns the mask as it was.
std::uint64_t block_async_signals() noexcept;
void set_signal_mask(std::uint64_t mask) noexcept;

// These functions are not inline, so that code that blocks no signals costs one branch only.
[[gnu::cold]] void begin_blocking() noexcept;
[[gnu::cold]] void end_blocking() noexcept;

}  // namespace detail

/// Blocks asynchronous signals in the calling thread while the object lives.  Objects may be nested.  Does
/// not block signals that the thread's own instructions raise (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT,
/// SIGTRAP, SIGSYS).  Do not use this around code of the program, such as callbacks and comparators.
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

  /// Returns true if the calling thread blocks signals through this class or a SignalSafeMutex.
  static bool active() noexcept { return detail::signal_blocking.depth != 0; }

 private:
  const bool wanted_;
};

/// If the thread blocks signals by AsyncSignalsBlocked, restores its own signal mask while the object lives.
/// Otherwise has no effect.  Use this for waits and callbacks, and hold no SignalSafeMutex meanwhile.  Signal
/// handlers may then run and fork.  So state that a forked child needs must be consistent.  If the handler
/// returns in the child, the code that uses this object goes on there, too.
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
    outer_.before = detail::block_async_signals();  // a handler or a callback may have changed the mask
    detail::signal_blocking = outer_;
  }

 private:
  detail::SignalBlocking outer_;
};

/// A mutex that fork handlers may lock.  A thread that holds the mutex blocks asynchronous signals.  Works
/// with std::lock_guard and std::unique_lock.  In a forked child, the thread that has locked the mutex
/// unlocks it, which restores the thread's own signal mask.
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

/// Call this before a thread of LMDBIO is started.
inline void note_own_thread() noexcept { detail::own_threads.store(true, std::memory_order_relaxed); }
/// Returns true if a thread of LMDBIO was started.  From then on, fork() takes the locks of malloc, which it
/// does not do in a program with one thread.  Code that allocates outside of slow paths calls this function
/// first, since blocking signals costs two system calls.
inline bool has_own_threads() noexcept { return detail::own_threads.load(std::memory_order_relaxed); }

}  // namespace lmdbio
