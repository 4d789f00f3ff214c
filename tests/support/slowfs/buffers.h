// Memory for answers, kept for the next ones.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace lmdbio::slowfs {

/// Memory from the allocator is given back to the kernel when a large answer is done and has to be made anew,
/// page by page, for the next: that took a third of the time of a request of 1 MiB.  The last buffer given
/// back is the first to be used again: it is still in the processor's cache.  Any thread.
class Buffers {
 public:
  /// A buffer of at least `bytes`, back here when the last one who has it is done.  Outlived by this object.
  std::shared_ptr<char[]> take(std::size_t bytes);

 private:
  static constexpr std::size_t kLarge = std::size_t{1}
                                        << 20;  // the kernel's largest request; above: not kept
  static constexpr std::size_t kSmall = std::size_t{1} << 15;  // below: the allocator's own
  static constexpr std::size_t kKept = 256;

  void give_back(std::unique_ptr<char[]> buffer);

  std::mutex mutex_;                           // rank: leaf
  std::vector<std::unique_ptr<char[]>> idle_;  // kLarge bytes each
};

}  // namespace lmdbio::slowfs
