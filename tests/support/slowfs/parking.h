// Requests that are answered later: after a time, when told, or when whoever asked gives up.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/slowfs/fuse_types.h"

namespace lmdbio::slowfs {

/// Waiting takes no thread.  A few threads of its own end the waits, in order of their times.
class Parking {
 public:
  using Clock = std::chrono::steady_clock;
  using Id = std::uintptr_t;
  enum class Kind { kDelay, kHangRead, kHangLock, kLock, kControl };
  enum class Why { kDue, kReleased, kInterrupted, kEnding };
  using Interrupted = void (*)(fuse_req*, void* id);
  using Done = std::function<void(Why)>;
  static constexpr Clock::time_point kNever = Clock::time_point::max();

  /// `interrupted` is called when the kernel interrupts a parked request; it passes the id to interrupt().
  explicit Parking(Interrupted interrupted);
  ~Parking() { end(); }
  Parking(const Parking&) = delete;
  Parking& operator=(const Parking&) = delete;

  /// Keeps `req` until `due`; then `done` answers it, once, in a thread of Parking's.  It begins to run after
  /// arm() at the earliest.  `subject`: what wake() may name.  The kernel's interrupts end the wait of locks
  /// and control requests; of hanging reads only if the asker is being killed (an EINTR in a page fault would
  /// be a SIGBUS), and of delays never.  `want_hung`: also due as soon as that many reads and locks hang.
  Id add(fuse_req* req, Kind kind, Clock::time_point due, Done done, const void* subject = nullptr,
         std::size_t want_hung = 0);
  void arm(Id id);
  void park(fuse_req* req, Kind kind, Clock::time_point due, Done done) {
    arm(add(req, kind, due, std::move(done)));
  }

  /// Ends the waits for locks of `subject`.
  void wake(const void* subject);
  /// Ends all hangs.
  void release();
  void interrupt(Id id);
  std::size_t hung() const;
  /// Ends all waits, and lets none begin.  Returns when all have been answered.
  void end();

 private:
  struct Item {
    fuse_req* req;
    Kind kind;
    Clock::time_point due;
    Done done;
    const void* subject;
    std::size_t want_hung;
    bool armed = false, finished = false;
    Why why = Why::kDue;
  };
  static bool hangs(Kind k) { return k == Kind::kHangRead || k == Kind::kHangLock; }
  // With mutex_ held.
  void finish(Id id, Item& item, Why why);
  void finished(Item& item);
  void run();

  const Interrupted interrupted_;
  mutable std::mutex mutex_;  // guards all below; none is taken while it is held
  std::condition_variable changed_;
  std::map<Id, Item> items_;
  std::set<std::pair<Clock::time_point, Id>> order_;  // of the armed ones
  Id last_ = 0;
  std::size_t hung_ = 0;  // that hang, and are not about to be answered
  bool ending_ = false;
  static constexpr int kThreads = 2;  // four, on two cores, halved what a reader got
  std::vector<std::thread> threads_;  // last: they use the others
};

}  // namespace lmdbio::slowfs
