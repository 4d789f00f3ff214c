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
/// A thread takes several small items at a time, because waking a thread takes longer than to read one from
/// the page cache.  Functions of a Loader are called by one thread.
class Loader {
 public:
  /// Sets `out` to the contents of an item.  Several threads call it at a time.  May throw.
  using Read = std::function<void(std::size_t item, std::string& out)>;
  /// Returns the expected size of an item, in bytes.
  using Size = std::function<std::uint64_t(std::size_t item)>;

  static constexpr unsigned kThreads = 16;
  static constexpr std::uint64_t kAheadBytes = std::uint64_t{64} << 20, kAheadItems = 1024;
  /// What a thread takes at most.  An item with more bytes is taken alone.
  static constexpr std::uint64_t kGroupBytes = std::uint64_t{128} << 10, kGroupItems = 32;

  /// Reads the items up to `end` - 1.  Throws std::system_error if not even one thread can be started.
  Loader(std::size_t first, std::size_t end, Size size, Read read);
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  /// Waits for reads that have begun.
  ~Loader();

  /// Waits for the next item.  Call it once for each.  Throws what reading the item has thrown.
  std::string next();

 private:
  /// Consecutive items that one thread reads.
  struct Group {
    std::vector<std::string> contents;  ///< of the items before the one that failed
    std::exception_ptr failure;
    std::size_t items = 0;
    std::uint64_t bytes = 0;  ///< counted in ahead_bytes_
    bool ready = false;
  };
  void work();
  void take(Group& group) const;

  const std::size_t end_;
  const Size size_;
  const Read read_;
  std::mutex mutex_;  ///< guards the members below
  std::condition_variable room_, ready_;
  std::size_t taken_, given_;  ///< the next item to read, and the first one of the next group to return
  std::deque<Group> groups_;   ///< items given_ to taken_ - 1
  std::uint64_t ahead_bytes_ = 0;
  bool ends_ = false;
  std::size_t working_ = 0;  ///< threads that have not run out of memory
  // Only for the caller's thread:
  Group current_;
  std::size_t next_ = 0;  ///< of current_
  std::vector<std::thread> threads_;
};

}  // namespace lmdbio::files
