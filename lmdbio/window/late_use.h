// Detects programs that read values late, which means outside of LMDB's calls, through pointers that walks
// returned earlier.  Each such read is a page fault that cannot be predicted.  Samples of values that were
// not read at once are checked from time to time (window/touched.h).  If the program reads them later, the
// file is worth loading as a whole.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lmdbio/window/touched.h"

namespace lmdbio::window {

/// The samples of one file.  Under the Prefetcher's lock, except for constants.
class LateUse {
 public:
  /// Largest number of samples, and how many of them must be used for the program to count as reading late.
  static constexpr std::size_t kMost = 128;
  static constexpr unsigned kUsed = 4;
  /// Interval between two checks, in ns.  After kLooks checks in a row without a used sample, the checks end.
  static constexpr std::int64_t kEvery = 20'000'000;
  static constexpr unsigned kLooks = 500;

  /// Adds values that a walk under a snapshot of `used_bytes` passed by.  Each value is given by an address
  /// inside it.
  void add(std::span<const std::byte* const> values, std::uint64_t used_bytes) noexcept {
    if (ended_) return;
    looks_ = 0;
    used_bytes_ = used_bytes;
    try {
      samples_.reserve(kMost);
    } catch (...) {  // no values are checked then
      return;
    }
    for (const std::byte* const v : values) {
      if (offered_++ % apart_ != 0) continue;
      samples_.push_back({v, false});
      if (samples_.size() == kMost) thin_out();
    }
  }
  bool is_watched() const noexcept { return !ended_ && !samples_.empty() && looks_ < kLooks; }
  std::uint64_t used_bytes() const noexcept { return used_bytes_; }
  /// Ends the checks for good.
  void end() noexcept {
    ended_ = true;
    samples_ = {};
  }
  /// In a forked child: drops the samples, since the parent's accesses say nothing about the child.
  void after_fork() noexcept { samples_.clear(); }

  /// Writes the samples to check to `addresses` and returns their number.  `faulted`: since the last check,
  /// page faults have waited for storage.  Without such page faults, samples that were absent need no check.
  std::size_t to_look_at(std::span<const std::byte*, kMost> addresses, bool faulted) const noexcept {
    std::size_t n = 0;
    for (const Sample& s : samples_)
      if (faulted || !s.is_absent) addresses[n++] = s.address;
    return n;
  }
  /// Records the states of the pages at these addresses.  Returns true if the program reads late, and all
  /// over the file.
  bool saw(std::span<const std::byte* const> addresses, std::span<const TouchedPages::Page> pages) noexcept {
    ++looks_;
    if (addresses.empty()) return false;
    unsigned used = 0;
    const std::byte *first_used = nullptr, *last_used = nullptr;
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      const auto at = std::find_if(samples_.begin(), samples_.end(),
                                   [&](const Sample& s) { return s.address == addresses[i]; });
      if (at == samples_.end()) continue;
      if (pages[i] == TouchedPages::Page::absent)
        at->is_absent = true;
      else if (pages[i] == TouchedPages::Page::touched && at->is_absent) {
        ++used;
        if (first_used == nullptr || std::less<>()(at->address, first_used)) first_used = at->address;
        if (last_used == nullptr || std::less<>()(last_used, at->address)) last_used = at->address;
      } else {
        samples_.erase(at);  // it was used before, or its state is unknown
      }
    }
    if (used < kUsed) return false;
    looks_ = 0;
    const auto [first, last] = std::minmax_element(addresses.begin(), addresses.end(), std::less<>());
    return 2 * (last_used - first_used) >= *last - *first;
  }

 private:
  struct Sample {
    const std::byte* address;
    bool is_absent;  ///< at the last check
  };

  void thin_out() noexcept {
    std::size_t n = 0;
    for (std::size_t i = 0; i < samples_.size(); i += 2) samples_[n++] = samples_[i];
    samples_.resize(n);
    apart_ *= 2;
  }

  std::vector<Sample> samples_;
  std::uint64_t offered_ = 0, apart_ = 1, used_bytes_ = 0;
  unsigned looks_ = 0;
  bool ended_ = false;
};

}  // namespace lmdbio::window
