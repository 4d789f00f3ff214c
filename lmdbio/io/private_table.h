// Threads with a file descriptor table of their own.
//
// A program may close any descriptor at any time and open another file under its number.  A daemon closes
// all of them.  LMDBIO therefore opens its files in a second descriptor table, which the program's threads
// do not share.  close_range(2) with CLOSE_RANGE_UNSHARE gives one thread an empty table, and every thread
// that it starts shares that table.  Closing a descriptor there does not drop POSIX record locks of the
// program, since locks belong to a table.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "lmdbio/base/futex.h"

namespace lmdbio {

/// The private table of this process, and the threads that share it.
class PrivateTable {
 public:
  /// Work for a thread of the table.  The caller owns it and must not move it until retract() has returned.
  class Job {
   public:
    explicit Job(void (*run)(void*) noexcept = nullptr, void* argument = nullptr) noexcept
        : run_(run), argument_(argument) {}
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

   private:
    friend class PrivateTable;
    void (*run_)(void*) noexcept;
    void* argument_;
    Job* next_ = nullptr;      // guarded by the table's mutex
    bool queued_ = false;      // guarded by the table's mutex
    unsigned running_ = 0;     // guarded by the table's mutex; number of threads that run it
    OneShot* done_ = nullptr;  // set after the run; may be null
  };

  /// Returns the process's table, and starts its first thread if there is none.  Returns nullptr if no
  /// thread can be started, if memory is short, or if the system does not allow a second table (seccomp).
  /// Any thread.
  static std::shared_ptr<PrivateTable> get() noexcept;
  /// Returns true if the calling thread is a thread of the table.
  static bool inside() noexcept;
  /// Registers the fork handler, which runs after all handlers that were registered earlier.  Returns false
  /// if memory is short.
  static bool watch_forks() noexcept;
  /// Returns the number of forks that led to this process since the library was loaded.  A descriptor of
  /// another generation belongs to the parent, and its number is not valid in this process.
  static unsigned generation() noexcept;

  /// True if the number of `fd` is in the upper half of what RLIMIT_NOFILE allows.  The caller then closes
  /// descriptors that it can do without.
  static bool crowded(int fd) noexcept;
  /// Returns a close-on-exec duplicate of the program's descriptor `fd`.  Call this in a thread of the table.
  /// Returns -1 with errno set if the program has no such descriptor, or if the system does not allow it
  /// (before Linux 5.6, seccomp).
  static int duplicate_of_programs(int fd) noexcept;

  ~PrivateTable();
  PrivateTable(const PrivateTable&) = delete;
  PrivateTable& operator=(const PrivateTable&) = delete;

  /// Runs body() in a thread of the table and waits for it.  In a thread of the table, runs it directly.
  /// Costs two context switches.  Returns false in a child that was forked meanwhile; body() may then have
  /// run in the parent.  body() must not throw.
  template <class F>
  bool call(F&& body) noexcept {
    if (inside()) {
      body();
      return true;
    }
    using Body = std::remove_reference_t<F>;
    return call([](void* b) noexcept { (*static_cast<Body*>(b))(); }, &body);
  }
  /// Runs body() in the process's table, as call().  Also returns false if there is no table.
  template <class F>
  static bool run(F&& body) noexcept {
    if (inside()) {
      body();
      return true;
    }
    const std::shared_ptr<PrivateTable> table = get();
    return table != nullptr && table->call(body);
  }
  /// Starts a call() without waiting for it: `job` runs soon, then `done` is set.  Both must be new, and must
  /// stay in place until `done` is set.  In a child that was forked meanwhile, `done` is never set.
  void begin(Job& job, OneShot& done) noexcept {
    job.done_ = &done;
    post(job);
  }
  /// Queues `job` to run soon; does nothing if it is queued already.  Any thread of this process.
  void post(Job& job) noexcept;
  /// Removes `job` from the queue, and waits until no thread runs it.  A job must not call this.
  void retract(Job& job) noexcept;
  /// Starts a thread that shares the table, with all signals blocked.  Returns 0 or an errno, as
  /// pthread_create(3).
  int start(pthread_t& thread, const pthread_attr_t* attributes, void* (*body)(void*),
            void* argument) noexcept;

 private:
  struct Core;
  explicit PrivateTable(Core* core) noexcept : core_(core), born_(generation()) {}
  bool call(void (*body)(void*) noexcept, void* argument) noexcept;

  Core* const core_;
  const unsigned born_;
};

/// Remembers the CPU affinity of the calling thread for all threads of LMDBIO.  They then run on the CPUs
/// that the process could use when the library was loaded, even if the thread that starts them is bound to
/// other CPUs.  The library's constructor calls this.  If it has not, the start of the first thread does.
void remember_affinity() noexcept;
/// Gives the calling thread the remembered affinity.
void use_remembered_affinity() noexcept;

/// Keeps this library loaded until the process ends.  Its threads need its code after a dlclose(3) by the
/// program.
void stay_loaded() noexcept;

}  // namespace lmdbio
