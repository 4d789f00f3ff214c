// Lock annotations (clang -Wthread-safety), and the mutex that carries them.
#pragma once

#include <mutex>

#if defined(__clang__)
#define LMDBIO_ANNOTATE(x) __attribute__((x))
#else
#define LMDBIO_ANNOTATE(x)
#endif

#define LMDBIO_CAPABILITY(name) LMDBIO_ANNOTATE(capability(name))
#define LMDBIO_SCOPED_CAPABILITY LMDBIO_ANNOTATE(scoped_lockable)
#define LMDBIO_GUARDED_BY(mutex) LMDBIO_ANNOTATE(guarded_by(mutex))
#define LMDBIO_PT_GUARDED_BY(mutex) LMDBIO_ANNOTATE(pt_guarded_by(mutex))
#define LMDBIO_REQUIRES(...) LMDBIO_ANNOTATE(requires_capability(__VA_ARGS__))
#define LMDBIO_EXCLUDES(...) LMDBIO_ANNOTATE(locks_excluded(__VA_ARGS__))
#define LMDBIO_ACQUIRE(...) LMDBIO_ANNOTATE(acquire_capability(__VA_ARGS__))
#define LMDBIO_RELEASE(...) LMDBIO_ANNOTATE(release_capability(__VA_ARGS__))
#define LMDBIO_TRY_ACQUIRE(...) LMDBIO_ANNOTATE(try_acquire_capability(__VA_ARGS__))
#define LMDBIO_ACQUIRED_BEFORE(...) LMDBIO_ANNOTATE(acquired_before(__VA_ARGS__))
#define LMDBIO_NO_THREAD_SAFETY_ANALYSIS LMDBIO_ANNOTATE(no_thread_safety_analysis)

namespace lmdbio {

/// std::mutex with annotations.  Each one says what it guards and its rank (docs/concurrency.md).
/// Constant-initialised and trivially destroyed in practice, so it may be a global.
class LMDBIO_CAPABILITY("mutex") Mutex {
 public:
  constexpr Mutex() noexcept = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void lock() LMDBIO_ACQUIRE() { m_.lock(); }
  void unlock() noexcept LMDBIO_RELEASE() { m_.unlock(); }
  bool try_lock() noexcept LMDBIO_TRY_ACQUIRE(true) { return m_.try_lock(); }

 private:
  std::mutex m_;
};

class LMDBIO_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& m) LMDBIO_ACQUIRE(m) : m_(m) { m_.lock(); }
  ~MutexLock() LMDBIO_RELEASE() { m_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& m_;
};

}  // namespace lmdbio
