// Leaf pages that hold keys: kept once they were read, up to a number, as far as the process has memory.
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

/// Any thread.  A page that was found stays as long as its holder wants it.
class LeafCache {
 public:
  using Page = std::shared_ptr<const std::byte[]>;

  LeafCache(std::size_t page_size, std::size_t most_pages, std::shared_ptr<Memory> memory) noexcept
      : page_size_(page_size), most_(most_pages), memory_(std::move(memory)) {}
  /// Bytes that a page takes here.
  static constexpr std::size_t cost(std::size_t page_size) noexcept { return page_size + 160; }

  /// Calls `take(i, page)` for each of `pages` that is here: i counts from 0.  `take` must not throw.
  template <class Take>
  void find(std::span<const std::uint64_t> pages, Take&& take) noexcept {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const auto at = places_.find(pages[i]);
      if (at == places_.end()) continue;
      entries_[at->second].used = true;
      take(i, entries_[at->second].page);
    }
  }
  /// Keeps a copy of the page at `bytes`; another one that was not looked for lately, and that nobody holds,
  /// may go.  If there is none, or no memory: it is not kept.
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
  std::mutex mutex_;  ///< guards what follows
  std::unordered_map<std::uint64_t, std::size_t> places_;
  std::vector<Entry> entries_;
  std::size_t hand_ = 0;  ///< second chance
  TakenMemory taken_;
  unsigned not_asked_ = 0;  ///< pages until the process is asked for memory again
};

}  // namespace lmdbio::records
