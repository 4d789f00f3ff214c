// Waits for a number in memory to change, with futex(2), which also works in a forked child.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>

namespace lmdbio {

/// A count of events.  A waiter reads the count, checks whether there is anything to do, and waits for the
/// count to change.  Needs no destruction, and may be used after a fork.  Any thread.
///
/// Reads and increments are sequentially consistent.  Suppose that one thread sets a flag and then reads the
/// count, and that another thread increments the count and then tests the flag.  At least one of the two then
/// sees what the other one has done.
class EventCount {
 public:
  std::uint32_t now() const noexcept { return count_.load(std::memory_order_seq_cst); }
  /// Waits until the count differs from `seen`, `timeout_ns` have passed, or a signal came.  Preserves
  /// errno.
  void wait(std::uint32_t seen, std::int64_t timeout_ns) noexcept {
    const int saved = errno;
    const timespec limit{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
    (void)::syscall(SYS_futex, &count_, FUTEX_WAIT_PRIVATE, seen, &limit, nullptr, 0);
    errno = saved;
  }
  void notify() noexcept { wake(INT_MAX); }
  /// Wakes one waiter.
  void notify_one() noexcept { wake(1); }

 private:
  void wake(int waiters) noexcept {
    count_.fetch_add(1, std::memory_order_seq_cst);
    const int saved = errno;
    (void)::syscall(SYS_futex, &count_, FUTEX_WAKE_PRIVATE, waiters, nullptr, nullptr, 0);
    errno = saved;
  }

  std::atomic<std::uint32_t> count_{0};
};

/// One event that one thread waits for.  Once the waiter can see the event, set() does not access the object
/// any more, so the waiter may free the object at once.
class OneShot {
 public:
  bool is_set() const noexcept { return word_.load(std::memory_order_acquire) != 0; }
  /// Waits until the event is set, `timeout_ns` have passed, or a signal came.  errno preserved.
  void wait(std::int64_t timeout_ns) noexcept {
    const int saved = errno;
    const timespec limit{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
    (void)::syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, 0, &limit, nullptr, 0);
    errno = saved;
  }
  void set() noexcept {
    void* const address = &word_;
    word_.store(1, std::memory_order_release);
    const int saved = errno;
    (void)::syscall(SYS_futex, address, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    errno = saved;
  }

 private:
  std::atomic<std::uint32_t> word_{0};
};

/// Returns CLOCK_MONOTONIC in nanoseconds.
inline std::int64_t now_ns() noexcept {
  timespec t{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

}  // namespace lmdbio
