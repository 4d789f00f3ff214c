// Records which pages of a file have been requested, so that overlapping extents are requested only once.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <unordered_map>

#include "lmdbio/io/extents.h"

namespace lmdbio::window {

/// A set of 4 KiB pages.  Takes 2 KiB of memory for each area of 64 MiB that has pages in the set.  Has no
/// lock of its own.  An extent that ends beyond 2^64 contains no page.
class AskedPages {
 public:
  static constexpr std::uint64_t kPage = 4096;

  /// Returns the first contiguous part of `e` that is not in the set, or 0 bytes if all of `e` is in it.
  Extent first_missing(const Extent& e) const noexcept {
    if (e.bytes == 0) return {};
    const std::uint64_t last = last_page(e), from = end_of(true, e.offset / kPage, last);
    if (from > last) return {};
    const std::uint64_t to = end_of(false, from, last), begin = std::max(from * kPage, e.offset);
    return {begin, std::min(to * kPage, e.offset + e.bytes) - begin};
  }
  /// Adds the pages of `e`.  May throw bad_alloc; then only some of the pages may have been added.
  void add(const Extent& e) {
    for_each_word(
        e, [this](std::uint64_t word, std::uint64_t mask) { areas_[word / kWords][word % kWords] |= mask; });
  }
  void remove(const Extent& e) noexcept {
    for_each_word(e, [this](std::uint64_t word, std::uint64_t mask) {
      if (const auto a = areas_.find(word / kWords); a != areas_.end()) a->second[word % kWords] &= ~mask;
    });
  }
  /// Returns the total size, in bytes, of those pages of `e` that are in the set.
  std::uint64_t bytes_of(const Extent& e) const noexcept {
    std::uint64_t pages = 0;
    for_each_word(e, [&](std::uint64_t word, std::uint64_t mask) {
      pages += static_cast<unsigned>(std::popcount(word_at(word) & mask));
    });
    return pages * kPage;
  }
  void clear() noexcept { areas_.clear(); }

 private:
  static constexpr std::uint64_t kBits = 64, kWords = (std::uint64_t{64} << 20) / kPage / kBits;
  using Area = std::array<std::uint64_t, kWords>;

  static std::uint64_t last_page(const Extent& e) noexcept { return (e.offset + e.bytes - 1) / kPage; }
  std::uint64_t word_at(std::uint64_t word) const noexcept {
    const auto a = areas_.find(word / kWords);
    return a == areas_.end() ? 0 : a->second[word % kWords];
  }
  /// Returns the end of a run of pages that starts at `page`.  With `in`, the run's pages are in the set,
  /// and the end is the first page that is not.  Without `in`, it is the other way round.  Returns `last` + 1
  /// if there is no such page up to `last`.
  std::uint64_t end_of(bool in, std::uint64_t page, std::uint64_t last) const noexcept {
    while (page <= last) {
      const std::uint64_t word = word_at(page / kBits), bit = page % kBits;
      const auto n = static_cast<unsigned>(std::countr_one((in ? word : ~word) >> bit));
      page += n;
      if (n < kBits - bit) break;
    }
    return std::min(page, last + 1);
  }
  template <class F>
  static void for_each_word(const Extent& e, F&& f) {
    if (e.bytes == 0) return;
    const std::uint64_t last = last_page(e);
    for (std::uint64_t p = e.offset / kPage; p <= last;) {
      const std::uint64_t n = std::min(kBits - p % kBits, last - p + 1);
      f(p / kBits, (~std::uint64_t{0} >> (kBits - n)) << p % kBits);
      p += n;
    }
  }

  std::unordered_map<std::uint64_t, Area> areas_;
};

}  // namespace lmdbio::window
