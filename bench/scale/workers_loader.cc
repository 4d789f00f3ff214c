#include <condition_variable>
#include <mutex>
#include <thread>

#include "bench/scale/loader.h"

namespace lmdbio::bench {

namespace {

/// Loads each K-th step ahead, in a thread of its own.  Holds one batch.
class Worker {
 public:
  Worker(std::unique_ptr<Loader> loader, std::uint64_t steps)
      : loader_(std::move(loader)), left_(steps), thread_([this] { run(); }) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      left_ = 0;
      wanted_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  std::uint64_t records() const { return loader_->records(); }
  /// Waits for the batch.  Valid until release().
  std::span<const Value> batch() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !wanted_; });
    return batch_;
  }
  /// Starts to load the next batch.
  void release() {
    {
      const std::lock_guard lock(mutex_);
      wanted_ = true;
    }
    changed_.notify_all();
  }

 private:
  void run() {
    for (std::unique_lock lock(mutex_); left_ != 0; --left_) {
      lock.unlock();
      const std::span<const Value> batch = loader_->next();
      lock.lock();
      if (left_ == 0) return;
      batch_ = batch;
      wanted_ = false;
      changed_.notify_all();
      changed_.wait(lock, [this] { return wanted_; });
      if (left_ == 0) return;
    }
  }

  const std::unique_ptr<Loader> loader_;
  std::mutex mutex_;  ///< guards the members below
  std::condition_variable changed_;
  std::uint64_t left_;  ///< batches that are still to be loaded
  bool wanted_ = true;  ///< false: batch_ is the next batch
  std::span<const Value> batch_;
  std::thread thread_;  ///< last, because it uses the other members
};

class WorkersLoader final : public Loader {
 public:
  WorkersLoader(const LoaderSettings& s, World& world) {
    int ranks = 1;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (unsigned i = 0; i < s.workers; ++i) {
      auto loader = stock_loader(s, world, i, s.workers);
      const std::uint64_t steps =
          s.epochs * steps_per_epoch(loader->records(), s.batch, static_cast<std::uint64_t>(ranks));
      workers_.push_back(
          std::make_unique<Worker>(std::move(loader), (steps + s.workers - 1 - i) / s.workers));
    }
  }
  std::uint64_t records() const override { return workers_[0]->records(); }
  LoaderCounters counters() const override {
    LoaderCounters c;
    c.reads = true;
    return c;
  }
  std::span<const Value> next() override {
    if (at_ != 0) workers_[(at_ - 1) % workers_.size()]->release();
    return workers_[at_++ % workers_.size()]->batch();
  }

 private:
  std::vector<std::unique_ptr<Worker>> workers_;
  std::uint64_t at_ = 0;  ///< the next step, of all epochs
};

}  // namespace

std::unique_ptr<Loader> workers_loader(const LoaderSettings& settings, World& world) {
  return std::make_unique<WorkersLoader>(settings, world);
}

}  // namespace lmdbio::bench
