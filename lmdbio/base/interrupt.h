// Waits that the calling program may end: lmdbio_set_interrupt.
#pragma once

#include <atomic>

namespace lmdbio {

/// As lmdbio_interrupt_func.
using InterruptFunc = int(void* context);

/// For the calling thread; null: nobody asks.
void set_interrupt(InterruptFunc* ask, void* context) noexcept;
/// A call of the library begins: what an earlier one was told does not count.
void forget_interrupt() noexcept;
/// Asks the program, with its signal mask, unless that was done less than 0.1 s ago.  Once it said so, the
/// call in progress ends.  Not under locks: the program may do anything meanwhile, also fork.
bool interrupted() noexcept;

/// For waits that can be cancelled in both ways.
inline bool wait_ended(const std::atomic<bool>& cancelled) noexcept {
  return cancelled.load(std::memory_order_acquire) || interrupted();
}

}  // namespace lmdbio
