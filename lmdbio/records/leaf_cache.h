// A cache of leaf pages that contain keys.  A number of pages and the process's memory limit its size.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "lmdbio/base/bytes.h"
#include "lmdbio/records/memory.h"

namespace lmdbio::records {

/// Keeps copies of leaf pages.  Any thread.  A page that find() passes on stays valid until its holder
/// releases it, even if the cache evicts it.
class LeafCache {
 public:
  using Page = std::shared_ptr<const std::byte[]>;

  LeafCache(std::size_t page_size, std::size_t most_pages, std::shared_ptr<Memory> memory) noexcept
      : page_size_(page_size), most_(most_pages), memory_(std::move(memory)) {}
  /// Returns the bytes that a page takes in the cache.
  static constexpr std::size_t cost(std::size_t page_size) noexcept { return page_size + 160; }

  /// Calls `take(i, page)` for each pages[i] that is in the cache.  `take` must not throw.
  template <class Take>
  void find(std::span<const std::uint64_t> pages, Take&& take) noexcept {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const auto at = entry_of_.find(pages[i]);
      if (at == entry_of_.end()) continue;
      entries_[at->second].used = true;
      take(i, entries_[at->second].page);
    }
  }
  /// Copies the page at `bytes` into the cache.  If the cache is full, evicts a page that was not found
  /// recently and that has no other holder.  If there is no such page, or no memory, keeps no copy.
  void keep(std::uint64_t page, const std::byte* bytes) noexcept;

 private:
  struct Entry {
    std::uint64_t number;
    Page page;
    bool used;
  };
  bool has_room();

  const std::size_t page_size_, most_;
  const std::shared_ptr<Memory> memory_;
  std::mutex mutex_;  ///< guards the members below
  std::unordered_map<std::uint64_t, std::size_t> entry_of_;
  std::vector<Entry> entries_;
  std::size_t hand_ = 0;  ///< index of the next entry that the second-chance algorithm checks
  TakenMemory taken_;
  unsigned not_asked_ = 0;  ///< number of pages until the cache requests memory of the process again
};

}  // namespace lmdbio::records
