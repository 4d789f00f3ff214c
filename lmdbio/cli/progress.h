// How far a long command has come, and the signal that ends it early.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace lmdbio::cli {

/// A line on standard error, if that is a terminal, drawn anew four times a second by a thread of its own:
/// also while nothing comes.  Erased with the object.
class Progress {
 public:
  /// `what`: what is done, printable.  Throws bad_alloc.
  explicit Progress(std::string what);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` of `total` parts.  Any thread.
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

/// Set by the first SIGINT or SIGTERM after catch_interrupts(); a second one ends the process.
const std::atomic<bool>& interrupted() noexcept;
void catch_interrupts() noexcept;
/// Exit status of a command that was interrupted, as a shell has it.
int interrupted_status() noexcept;

}  // namespace lmdbio::cli
