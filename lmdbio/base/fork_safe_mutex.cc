#include "lmdbio/base/fork_safe_mutex.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lmdbio::detail {

thread_local constinit SignalBlocking signal_blocking;
constinit std::atomic<bool> own_threads{false};

namespace {

static_assert(_NSIG == 65);  // the kernel's mask is 8 bytes

constexpr std::uint64_t bit(int signal) noexcept { return std::uint64_t{1} << (signal - 1); }
/// The signals that this library blocks.  It does not block 32 and 33, which libc uses for cancellation and
/// setuid(2): other threads would wait for a thread that blocks them.
constexpr std::uint64_t kAsync = ~(bit(SIGSEGV) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGILL) | bit(SIGABRT) |
                                   bit(SIGTRAP) | bit(SIGSYS) | bit(32) | bit(33));

}  // namespace

// The mask has 8 bytes, since one is kept for each thread.  A sigset_t has 128 bytes.  Neither system call
// can fail.
std::uint64_t block_async_signals() noexcept {
  std::uint64_t before = 0;
  (void)::syscall(SYS_rt_sigprocmask, SIG_BLOCK, &kAsync, &before, sizeof before);
  return before;
}

void set_signal_mask(std::uint64_t mask) noexcept {
  (void)::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, nullptr, sizeof mask);
}

// A signal handler that runs between the test and the system call restores the depth before it returns.
void begin_blocking() noexcept {
  SignalBlocking& s = signal_blocking;
  if (s.depth == 0) s.before = block_async_signals();
  ++s.depth;
}

void end_blocking() noexcept {
  SignalBlocking& s = signal_blocking;
  if (--s.depth == 0) set_signal_mask(s.before);
}

}  // namespace lmdbio::detail
