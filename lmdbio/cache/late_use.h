// Values that walks have given out and that were not read then.  A program may keep pointers to them, and
// read them later, outside of LMDB's calls: each is a page fault that nobody can foresee.  Samples of such
// values are looked at from time to time (cache/touched.h); if they come to be used, the file is worth
// loading.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lmdbio/cache/touched.h"

namespace lmdbio::cache {

/// Of one file.  Under the Prefetcher's lock, but for constants.
class LateUse {
 public:
  /// Most values that are looked at; so many of them used, and the program reads late.
  static constexpr std::size_t kMost = 128;
  static constexpr unsigned kUsed = 4;
  /// Nanoseconds from one look to the next; looks without a sample used, after which nobody looks any more.
  static constexpr std::int64_t kEvery = 20'000'000;
  static constexpr unsigned kLooks = 500;

  /// A walk under a snapshot of `used_bytes` passes these values by; each is told by an address in it.
  void add(std::span<const std::byte* const> values, std::uint64_t used_bytes) noexcept {
    if (ended_) return;
    looks_ = 0;
    used_bytes_ = used_bytes;
    try {
      samples_.reserve(kMost);
    } catch (...) {  // nothing is looked at
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
  /// Nobody has to look any more.
  void end() noexcept {
    ended_ = true;
    samples_ = {};
  }
  /// In a forked child: what the parent has seen says nothing of it.
  void after_fork() noexcept { samples_.clear(); }

  /// Samples to be looked at, and how many there are.  `faulted`: there were page faults since the last look
  /// that waited for storage; without any, samples whose state is known need no look.
  std::size_t to_look_at(std::span<const std::byte*, kMost> addresses, bool faulted) const noexcept {
    std::size_t n = 0;
    for (const Sample& s : samples_)
      if (faulted || !s.is_absent) addresses[n++] = s.address;
    return n;
  }
  /// What was seen at these addresses.  True: the program reads late, and all over the file.
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
        samples_.erase(at);  // it was used before, or cannot be told
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
    bool is_absent;  ///< at the last look
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

}  // namespace lmdbio::cache
