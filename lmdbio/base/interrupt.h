// Waits that the calling program may end: lmdbio_set_interrupt.
#pragma once

#include <atomic>

namespace lmdbio {

/// As lmdbio_interrupt_func.
using InterruptFunc = int(void* context);

/// For the calling thread; null: nobody asks.
void set_interrupt(InterruptFunc* ask, void* context) noexcept;
/// What set_interrupt() was given last by this thread.
void get_interrupt(InterruptFunc*& ask, void*& context) noexcept;
/// A call of the library begins: the answers to earlier calls do not count.
void forget_interrupt() noexcept;
/// Asks the program, with its signal mask, but at most every 0.1 s.  True: the call in progress is to end; so
/// is the answer from then on.  Not under locks: the program may do anything meanwhile, also fork.
bool interrupted() noexcept;

/// For waits that can be cancelled in both ways.
inline bool wait_ended(const std::atomic<bool>& cancelled) noexcept {
  return cancelled.load(std::memory_order_acquire) || interrupted();
}

}  // namespace lmdbio
