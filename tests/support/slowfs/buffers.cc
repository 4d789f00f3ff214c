#include "tests/support/slowfs/buffers.h"

#include <utility>

namespace lmdbio::slowfs {

std::shared_ptr<char[]> Buffers::take(std::size_t bytes) {
  if (bytes < kSmall || bytes > kLarge)
    return std::shared_ptr<char[]>(std::make_unique_for_overwrite<char[]>(bytes));
  std::unique_ptr<char[]> buffer;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      buffer = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (buffer == nullptr) buffer = std::make_unique_for_overwrite<char[]>(kLarge);
  return std::shared_ptr<char[]>(buffer.release(),
                                 [this](char* b) { give_back(std::unique_ptr<char[]>(b)); });
}

void Buffers::give_back(std::unique_ptr<char[]> buffer) {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kKept) idle_.push_back(std::move(buffer));
}

}  // namespace lmdbio::slowfs
