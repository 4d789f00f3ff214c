// Lets the calling program end waits (lmdbio_set_interrupt).
#pragma once

#include <atomic>

namespace lmdbio {

/// Function of the program, as lmdbio_interrupt_func.
using InterruptFunc = int(void* context);

/// Sets the function that is asked in the calling thread; null: none.
void set_interrupt(InterruptFunc* ask, void* context) noexcept;
/// Returns the last arguments of set_interrupt() in this thread.
void get_interrupt(InterruptFunc*& ask, void*& context) noexcept;
/// Marks the beginning of a call of the library: answers to earlier calls no longer count.
void forget_interrupt() noexcept;
/// Asks the program, with its own signal mask, at most every 0.1 s.  True: the call in progress must end,
/// and further questions in this call return true as well.  Not under locks: the program may do anything
/// meanwhile, even fork.
bool interrupted() noexcept;

/// True if the wait must end, for waits that can be cancelled in both ways.
inline bool wait_ended(const std::atomic<bool>& cancelled) noexcept {
  return cancelled.load(std::memory_order_acquire) || interrupted();
}

}  // namespace lmdbio
