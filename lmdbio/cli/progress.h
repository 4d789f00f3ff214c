// Shows the progress of a long command, and handles the signals that end it early.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace lmdbio::cli {

/// A progress line on standard error, if that is a terminal.  A thread draws it four times a second, even
/// if set() is not called.  The destructor erases it.
class Progress {
 public:
  /// `what`: the printable name of the activity.  Throws bad_alloc.
  explicit Progress(std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Sets the progress to `done` of `total` parts.  Any thread.
  void set(std::uint64_t done, std::uint64_t total) noexcept {
    total_.store(total, std::memory_order_relaxed);
    done_.store(done, std::memory_order_relaxed);
  }

 private:
  void draw_until_end() noexcept;
  void draw() noexcept;

  const std::string what_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::atomic<std::uint64_t> done_{0}, total_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::thread thread_;
};

/// Returns a flag, which is set by the first SIGINT or SIGTERM after a call of catch_interrupts().  A second
/// signal ends the process.
const std::atomic<bool>& interrupted() noexcept;
void catch_interrupts() noexcept;
/// Returns the exit status of an interrupted command, as a shell reports it.
int interrupted_status() noexcept;

}  // namespace lmdbio::cli
