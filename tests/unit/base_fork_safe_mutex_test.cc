#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <vector>

#include "lmdbio/base/fork_safe_mutex.h"

namespace lmdbio {
namespace {

std::vector<int> blocked() {
  sigset_t now;
  ::sigemptyset(&now);
  (void)::pthread_sigmask(SIG_SETMASK, nullptr, &now);
  std::vector<int> out;
  for (int s = 1; s < NSIG; ++s)
    if (::sigismember(&now, s) == 1) out.push_back(s);
  return out;
}

bool is_blocked(int signal) {
  for (const int s : blocked())
    if (s == signal) return true;
  return false;
}

void mask(int how, int signal) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, signal);
  ASSERT_EQ(::pthread_sigmask(how, &set, nullptr), 0);
}

TEST(ForkSafeMutex, HolderBlocksWhatHandlersMayCome) {
  const std::vector<int> before = blocked();
  SignalSafeMutex m;
  {
    const std::lock_guard lock(m);
    for (const int s : {SIGINT, SIGTERM, SIGALRM, SIGCHLD, SIGUSR1, SIGPROF, SIGRTMIN, SIGRTMAX})
      EXPECT_TRUE(is_blocked(s)) << s;
    for (const int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS, 32, 33})
      EXPECT_FALSE(is_blocked(s)) << s;
  }
  EXPECT_EQ(blocked(), before);
}

TEST(ForkSafeMutex, AnyOrderOfReleaseEndsWithTheMaskOfTheBeginning) {
  mask(SIG_BLOCK, SIGUSR2);
  const std::vector<int> before = blocked();
  SignalSafeMutex a, b, c;
  a.lock();
  b.lock();
  a.unlock();
  EXPECT_TRUE(is_blocked(SIGALRM));
  c.lock();
  b.unlock();
  EXPECT_TRUE(is_blocked(SIGALRM));
  {
    const AsyncSignalsBlocked more;
    c.unlock();
    EXPECT_TRUE(is_blocked(SIGALRM));
  }
  EXPECT_EQ(blocked(), before);
  EXPECT_TRUE(is_blocked(SIGUSR2));
  mask(SIG_UNBLOCK, SIGUSR2);
}

TEST(ForkSafeMutex, WaitsHaveTheProgramsMask) {
  const std::vector<int> before = blocked();
  {
    const AsyncSignalsBlocked outer;
    SignalSafeMutex m;
    std::unique_lock lock(m);
    lock.unlock();
    {
      const AsyncSignalsAllowed program;
      EXPECT_EQ(blocked(), before);
      EXPECT_FALSE(AsyncSignalsBlocked::active());
      {
        const AsyncSignalsBlocked callback;  // a handler or a callback that calls in
        EXPECT_TRUE(is_blocked(SIGALRM));
      }
      EXPECT_EQ(blocked(), before);
      mask(SIG_BLOCK, SIGUSR1);  // it may change the mask
    }
    lock.lock();
    EXPECT_TRUE(is_blocked(SIGALRM));
  }
  EXPECT_TRUE(is_blocked(SIGUSR1));
  EXPECT_FALSE(is_blocked(SIGALRM));
  mask(SIG_UNBLOCK, SIGUSR1);
  EXPECT_EQ(blocked(), before);
  {
    const AsyncSignalsAllowed nothing;
    const AsyncSignalsBlocked unwanted(false);
    EXPECT_EQ(blocked(), before);
  }
  EXPECT_EQ(blocked(), before);
}

SignalSafeMutex handler_mutex;
volatile sig_atomic_t handled = 0;

void fork_and_reap(int) {
  handler_mutex.lock();  // as a fork handler does
  const pid_t pid = ::fork();
  handler_mutex.unlock();
  if (pid == 0) ::_exit(is_blocked(SIGUSR2) ? 1 : 0);
  int status = -1;
  if (::waitpid(pid, &status, 0) == pid && status == 0) handled = handled + 1;
}

TEST(ForkSafeMutex, HandlerRunsAfterTheHolderAndInItsWaits) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer reports a handler that forks and allocates, which this one does on purpose";
#endif
  struct sigaction action {};
  action.sa_handler = fork_and_reap;
  ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
  handled = 0;
  {
    std::unique_lock lock(handler_mutex);
    ASSERT_EQ(::pthread_kill(::pthread_self(), SIGUSR1), 0);
    EXPECT_EQ(handled, 0);
    lock.unlock();
    EXPECT_EQ(handled, 1);
  }
  {
    const AsyncSignalsBlocked outer;
    ASSERT_EQ(::pthread_kill(::pthread_self(), SIGUSR1), 0);
    EXPECT_EQ(handled, 1);
    const AsyncSignalsAllowed program;
    EXPECT_EQ(handled, 2);
  }
  EXPECT_EQ(handled, 2);
}

}  // namespace
}  // namespace lmdbio
