// Makes it safe that a signal handler interrupts this library and calls fork().  The fork handlers take
// locks of this library.  If the process has a second thread, fork() also takes the locks of malloc.  If the
// interrupted code held one of these locks, fork() would never return.  A thread therefore blocks signals
// while it holds such a lock, or allocates in a slow path.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace lmdbio {

namespace detail {

/// Signal blocking of a thread.  The outermost object that blocks signals saves the mask, and nested objects
/// only count.  Locks may therefore be released in any order.
struct SignalBlocking {
  unsigned depth = 0;
  std::uint64_t before = 0;  ///< the thread's mask, while depth is not 0
};
extern thread_local constinit SignalBlocking signal_blocking;
extern constinit std::atomic<bool> own_threads;

/// Blocks all asynchronous signals and returns the mask as it was.
std::uint64_t block_async_signals() noexcept;
void set_signal_mask(std::uint64_t mask) noexcept;

// Not inline: code that does not need to block pays one branch only.
[[gnu::cold]] void begin_blocking() noexcept;
[[gnu::cold]] void end_blocking() noexcept;

}  // namespace detail

/// Blocks asynchronous signals in the calling thread while it lives; may be nested.  Does not block signals
/// that the thread's own instructions raise (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS).
/// Not for use around code of the program: callbacks and comparators.
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

  /// True if the calling thread is inside of one, or holds a SignalSafeMutex.
  static bool active() noexcept { return detail::signal_blocking.depth != 0; }

 private:
  const bool wanted_;
};

/// Inside of AsyncSignalsBlocked, gives the thread its own mask back while it lives; has no effect
/// elsewhere.  For waits and callbacks, with no SignalSafeMutex held.  Signal handlers may run and fork
/// meanwhile.  State that a child needs must therefore be consistent, and the caller may be in that child
/// afterwards.
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

/// A mutex that fork handlers may take.  Its holder blocks asynchronous signals.  For std::lock_guard and
/// std::unique_lock.  In a forked child, the thread that held it unlocks it and gets its own mask back.
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
/// True if a thread of LMDBIO was started.  From then on fork() takes the locks of malloc, which it would
/// not do in a program with one thread.  Code that allocates outside of slow paths asks this, since blocking
/// signals costs two system calls.
inline bool has_own_threads() noexcept { return detail::own_threads.load(std::memory_order_relaxed); }

}  // namespace lmdbio
