#include "lmdbio/base/interrupt.h"

#include <cstdint>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/futex.h"

namespace lmdbio {

namespace {

constexpr std::int64_t kPeriodNs = 100'000'000;

struct Interrupt {
  InterruptFunc* ask = nullptr;
  void* context = nullptr;
  std::int64_t asked_ns = 0;  ///< 0 if the program was not asked in this call
  bool told = false;
};
thread_local constinit Interrupt interrupt;

}  // namespace

void set_interrupt(InterruptFunc* ask, void* context) noexcept { interrupt = {ask, context, 0, false}; }

void get_interrupt(InterruptFunc*& ask, void*& context) noexcept {
  ask = interrupt.ask;
  context = interrupt.context;
}

void forget_interrupt() noexcept {
  interrupt.asked_ns = 0;
  interrupt.told = false;
}

bool interrupted() noexcept {
  if (interrupt.ask == nullptr) return false;
  if (interrupt.told) return true;
  const std::int64_t now = now_ns();
  if (interrupt.asked_ns == 0) interrupt.asked_ns = now;  // most calls end before the first question
  if (now - interrupt.asked_ns < kPeriodNs) return false;
  const Interrupt asked = interrupt;
  int answer = 0;
  {
    const AsyncSignalsAllowed program;
    answer = asked.ask(asked.context);  // the function may call this library
  }
  interrupt = {asked.ask, asked.context, now_ns(), answer != 0};
  return interrupt.told;
}

}  // namespace lmdbio
