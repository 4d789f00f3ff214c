#include "lmdbio/reader/leaf_cache.h"

#include <cstring>

namespace lmdbio::reader {

void LeafCache::keep(std::uint64_t page, const std::byte* bytes) noexcept {
  if (most_ == 0) return;
  try {
    const std::shared_ptr<std::byte[]> copy(new std::byte[page_size_]);
    std::memcpy(copy.get(), bytes, page_size_);
    const std::lock_guard lock(mutex_);
    if (places_.contains(page)) return;
    if (entries_.size() < most_) {
      entries_.push_back({page, copy, false});
      try {
        places_.emplace(page, entries_.size() - 1);
      } catch (...) {
        entries_.pop_back();
      }
      return;
    }
    while (entries_[hand_].used) {
      entries_[hand_].used = false;
      hand_ = (hand_ + 1) % entries_.size();
    }
    places_.emplace(page, hand_);
    places_.erase(entries_[hand_].number);
    entries_[hand_] = {page, copy, false};
    hand_ = (hand_ + 1) % entries_.size();
  } catch (...) {  // out of memory
  }
}

}  // namespace lmdbio::reader
