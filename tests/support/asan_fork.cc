// Locks AddressSanitizer's runtime across fork(), as libc does with its own allocator.  LLVM's runtime does
// so from LLVM 18 on; that of GCC 12 does not.  A forked child could then wait forever for a lock that a
// thread of the parent held at the fork, for example a thread that was just starting.
#include <pthread.h>

// Functions of the runtime.  Only programs that are linked with -static-libasan can call them.
namespace __lsan {
void LockThreadRegistry();
void UnlockThreadRegistry();
void LockAllocator();
void UnlockAllocator();
}  // namespace __lsan
namespace __sanitizer {
void StackDepotLockAll();
void StackDepotUnlockAll();
}  // namespace __sanitizer

namespace {

void lock() {
  __lsan::LockThreadRegistry();
  __lsan::LockAllocator();
  __sanitizer::StackDepotLockAll();
}
void unlock() {
  __sanitizer::StackDepotUnlockAll();
  __lsan::UnlockAllocator();
  __lsan::UnlockThreadRegistry();
}

// fork() calls the first registered handler last before the fork, and first after it.  So the other handlers
// may allocate memory.
[[gnu::constructor(101)]] void watch_forks() { (void)::pthread_atfork(lock, unlock, unlock); }

}  // namespace
