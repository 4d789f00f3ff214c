// Threads with a table of file descriptors of their own.
//
// A program may close any descriptor at any time (a daemon closes all of them) and open another file under
// its number. What LMDBIO reads from is therefore opened in a second table, which the program's threads do
// not share: close_range(2) with CLOSE_RANGE_UNSHARE gives a thread an empty one, and every thread that it
// starts shares that.  Closing a descriptor there drops no POSIX record lock of the program either: locks
// belong to a table.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "lmdbio/base/futex.h"

namespace lmdbio {

class PrivateTable {
 public:
  /// Work for a thread of the table.  Owned by the caller; stays where it is until retract() has returned.
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
    Job* next_ = nullptr;      // under the table's lock
    bool queued_ = false;      // likewise
    unsigned running_ = 0;     // likewise; threads that are in it
    OneShot* done_ = nullptr;  // of call()
  };

  /// The process's table; starts its first thread if there is none.  Null: no thread can be had, or the
  /// system refuses a table of its own (seccomp).  Any thread.
  static std::shared_ptr<PrivateTable> get() noexcept;
  /// The calling thread is one of the table's.
  static bool inside() noexcept;
  /// Registers the fork handler, after those that are to run before it.  False: out of memory.
  static bool watch_forks() noexcept;
  /// How many forks led to this process since the library was loaded.  A descriptor of another generation is
  /// the parent's: its number means nothing here.
  static unsigned generation() noexcept;

  /// True if the number of `fd` is in the upper half of what RLIMIT_NOFILE allows.  The caller then closes
  /// it, and does without.
  static bool crowded(int fd) noexcept;
  /// In a thread of the table: a duplicate of the program's descriptor, close-on-exec.  -1 and errno: there
  /// is none, or the system does not allow it (before Linux 5.6, seccomp).
  static int duplicate_of_programs(int fd) noexcept;

  ~PrivateTable();
  PrivateTable(const PrivateTable&) = delete;
  PrivateTable& operator=(const PrivateTable&) = delete;

  /// Runs body() on a thread of the table and waits for it; in such a thread at once.  False: in a forked
  /// child that was made meanwhile; the body may have run in the parent.  Costs two changes of threads.  body
  /// must not throw.
  template <class F>
  bool call(F&& body) noexcept {
    if (inside()) {
      body();
      return true;
    }
    using Body = std::remove_reference_t<F>;
    return call([](void* b) noexcept { (*static_cast<Body*>(b))(); }, &body);
  }
  /// call() of the process's table.  False also if there is none.
  template <class F>
  static bool run(F&& body) noexcept {
    if (inside()) {
      body();
      return true;
    }
    const std::shared_ptr<PrivateTable> table = get();
    return table != nullptr && table->call(body);
  }
  /// The beginning of a call(): has `job` run soon, and `done` set after that.  Both are new, and stay where
  /// they are until it is set; in a child that was forked meanwhile it never is.
  void begin(Job& job, OneShot& done) noexcept {
    job.done_ = &done;
    post(job);
  }
  /// Has `job` run soon; nothing if it waits already.  Any thread of this process.
  void post(Job& job) noexcept;
  /// The job is not run any more, and no thread is in it.  Not from within a job.
  void retract(Job& job) noexcept;
  /// pthread_create(3) of a thread that shares the table: all signals blocked.  0 or an errno.
  int start(pthread_t& thread, const pthread_attr_t* attributes, void* (*body)(void*),
            void* argument) noexcept;

 private:
  struct Core;
  explicit PrivateTable(Core* core) noexcept : core_(core), born_(generation()) {}
  bool call(void (*body)(void*) noexcept, void* argument) noexcept;

  Core* const core_;
  const unsigned born_;
};

/// Threads of LMDBIO run where the process was allowed to run when the library was loaded, not where the
/// thread that happened to start them is bound.  Called by the library's constructor; else the first thread's
/// start does it.
void remember_affinity() noexcept;
/// For the calling thread: the mask that was remembered.
void use_remembered_affinity() noexcept;

/// Keeps this library loaded for good: the code of threads has to stay when a program calls dlclose(3).
void stay_loaded() noexcept;

}  // namespace lmdbio
