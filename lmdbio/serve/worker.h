// A thread of the server that does what would make the server wait.
#pragma once

#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace lmdbio::serve {

/// Does jobs one after the other, in a thread that starts with the first one.  Any thread.
class Worker {
 public:
  Worker() noexcept = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  /// Drops the jobs that have not begun, and waits for the end of the one that has.
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      jobs_.clear();
      ends_ = true;
    }
    added_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  /// Adds a job, which must not throw.  May throw bad_alloc, and std::system_error if there is no thread.
  void add(std::function<void()> job) {
    {
      const std::lock_guard lock(mutex_);
      if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
      jobs_.push_back(std::move(job));
      ++open_;
    }
    added_.notify_one();
  }
  /// Returns whether all jobs have ended.
  bool is_idle() const {
    const std::lock_guard lock(mutex_);
    return open_ == 0;
  }

 private:
  void run() {
    sigset_t all;
    (void)::sigfillset(&all);
    (void)::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    std::unique_lock lock(mutex_);
    for (;;) {
      added_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
      if (ends_) return;
      std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      job = {};  // what it has ends here
      lock.lock();
      --open_;
    }
  }

  mutable std::mutex mutex_;  ///< guards the members below
  std::condition_variable added_;
  std::deque<std::function<void()>> jobs_;
  std::size_t open_ = 0;  ///< jobs that have not ended
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace lmdbio::serve
