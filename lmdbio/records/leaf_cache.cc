#include "lmdbio/records/leaf_cache.h"

#include <algorithm>
#include <cstring>

namespace lmdbio::records {

namespace {

/// Bytes that the cache takes from the process's memory at a time.
constexpr std::uint64_t kStep = std::uint64_t{64} << 10;
/// After a refusal, the cache requests memory of the process again only after this many pages.  Each request
/// makes readers unmap their free buffers.
constexpr unsigned kPause = 256;

}  // namespace

bool LeafCache::has_room() {
  if (entries_.size() >= most_) return false;
  const std::uint64_t bytes = (entries_.size() + 1) * cost(page_size_);
  if (bytes <= taken_.bytes()) return true;
  if (not_asked_ != 0 && --not_asked_ != 0) return false;
  if (taken_.take(memory_, MemoryUse::readers, std::max(bytes, taken_.bytes() + kStep), Urgency::ahead))
    return true;
  not_asked_ = kPause;
  return false;
}

void LeafCache::keep(std::uint64_t page, const std::byte* bytes) noexcept {
  if (most_ == 0) return;
  try {
    const std::shared_ptr<std::byte[]> copy(new std::byte[page_size_]);
    std::memcpy(copy.get(), bytes, page_size_);
    const std::lock_guard lock(mutex_);
    if (entry_of_.contains(page)) return;
    if (has_room()) {
      entries_.push_back({page, copy, false});
      try {
        entry_of_.emplace(page, entries_.size() - 1);
      } catch (...) {
        entries_.pop_back();
      }
      return;
    }
    // Evicting a page that is held would free no memory.
    for (std::size_t looked = 0;; ++looked) {
      if (looked >= 2 * entries_.size()) return;
      Entry& e = entries_[hand_];
      if (!e.used && e.page.use_count() == 1) break;
      e.used = false;
      hand_ = (hand_ + 1) % entries_.size();
    }
    entry_of_.emplace(page, hand_);
    entry_of_.erase(entries_[hand_].number);
    entries_[hand_] = {page, copy, false};
    hand_ = (hand_ + 1) % entries_.size();
  } catch (...) {  // out of memory
  }
}

}  // namespace lmdbio::records
