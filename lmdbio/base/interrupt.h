// Lets the calling program end waits (lmdbio_set_interrupt).
#pragma once

#include <atomic>

namespace lmdbio {

/// A function of the program; see lmdbio_interrupt_func.
using InterruptFunc = int(void* context);

/// Sets the function that interrupted() calls in the calling thread, or null for none.
void set_interrupt(InterruptFunc* ask, void* context) noexcept;
/// Returns the last arguments of set_interrupt() in this thread.
void get_interrupt(InterruptFunc*& ask, void*& context) noexcept;
/// Marks the beginning of a call of this library.  Answers that the program gave during earlier calls no
/// longer count.
void forget_interrupt() noexcept;
/// Asks the program whether the current call of this library must end.  Does so at most every 0.1 s, with the
/// program's own signal mask.  Once this function has returned true, it returns true until the call ends.  Do
/// not hold a lock, since the program may do anything meanwhile, even fork.
bool interrupted() noexcept;

/// Returns true if a wait must end because `cancelled` is set or interrupted() returns true.
inline bool wait_ended(const std::atomic<bool>& cancelled) noexcept {
  return cancelled.load(std::memory_order_acquire) || interrupted();
}

}  // namespace lmdbio
