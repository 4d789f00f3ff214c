// How often a rank looks at what is under way, and how long it waits for others.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lmdbio::ranks {

/// Nanoseconds between two looks: from the least, while something happens, to the most while a program waits,
/// while none waits, and while there is nothing under way.
inline constexpr std::int64_t kLeastPause = 20'000, kMostPauseWaiting = 200'000, kMostPauseBusy = 1'000'000,
                              kMostPauseIdle = 5'000'000;

/// `quiet`: looks in a row at which nothing had happened.
constexpr std::int64_t pause_after(unsigned quiet, std::int64_t most) noexcept {
  constexpr unsigned kMostDoublings = 10;
  return std::min(kLeastPause << std::min(quiet, kMostDoublings), most);
}

/// What other ranks have not sent so many nanoseconds after it was needed is read by the rank itself.
inline constexpr std::int64_t kPatienceNs = 1'000'000'000;

}  // namespace lmdbio::ranks
