// Reads the contents of many files ahead, and returns them in order.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace lmdbio::files {

/// Reads items first, first + 1, ... by several threads, which run at most kAheadBytes and kAheadItems ahead.
/// Its functions are called by one thread.
class Loader {
 public:
  /// Sets `out` to the contents of an item.  Several threads call it at a time.  May throw.
  using Read = std::function<void(std::size_t item, std::string& out)>;
  /// Returns the expected size of an item, in bytes.
  using Size = std::function<std::uint64_t(std::size_t item)>;

  static constexpr unsigned kThreads = 16;
  static constexpr std::uint64_t kAheadBytes = std::uint64_t{64} << 20, kAheadItems = 1024;

  /// Reads the items up to `end` - 1.  Throws std::system_error if not even one thread can be started.
  Loader(std::size_t first, std::size_t end, Size size, Read read);
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  /// Waits for reads that have begun.
  ~Loader();

  /// Waits for the next item.  Call it once for each.  Throws what reading the item has thrown.
  std::string next();

 private:
  struct Slot {
    std::string contents;
    std::exception_ptr failure;
    std::uint64_t bytes = 0;  ///< counted in ahead_bytes_
    bool ready = false;
  };
  void work();

  const std::size_t end_;
  const Size size_;
  const Read read_;
  std::mutex mutex_;  ///< guards the members below
  std::condition_variable room_, ready_;
  std::size_t taken_, given_;  ///< the next item to read, and to return
  std::deque<Slot> slots_;     ///< items given_ to taken_ - 1
  std::uint64_t ahead_bytes_ = 0;
  bool ends_ = false;
  std::size_t working_ = 0;  ///< threads that have not run out of memory
  std::vector<std::thread> threads_;
};

}  // namespace lmdbio::files
