// How often a rank checks for progress, and how long it waits for other ranks.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lmdbio::ranks {

/// Nanoseconds between two checks for progress.  The shortest pause applies while something happens.  Pauses
/// then grow up to a limit: while a program waits, while no program waits, and while nothing is under way.
inline constexpr std::int64_t kLeastPause = 20'000, kMostPauseWaiting = 200'000, kMostPauseBusy = 1'000'000,
                              kMostPauseIdle = 5'000'000;

/// Returns the pause after `quiet` checks in a row that found no progress.
constexpr std::int64_t pause_after(unsigned quiet, std::int64_t most) noexcept {
  constexpr unsigned kMostDoublings = 10;
  return std::min(kLeastPause << std::min(quiet, kMostDoublings), most);
}

/// A rank reads a record itself if another rank has not sent it within this time after it was needed.
inline constexpr std::int64_t kPatienceNs = 1'000'000'000;

}  // namespace lmdbio::ranks
