// Defines how often a rank checks for progress, and how long it waits for other ranks.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lmdbio::ranks {

/// Pauses between two checks for progress, in nanoseconds.  kLeastPause applies while there is progress.
/// Without progress, pauses grow up to one of three limits: while a program waits, while no program waits,
/// and while no reader or stream needs progress.
inline constexpr std::int64_t kLeastPause = 20'000, kMostPauseWaiting = 200'000, kMostPauseBusy = 1'000'000,
                              kMostPauseIdle = 5'000'000;

/// Returns the pause after `quiet` consecutive checks without progress.
constexpr std::int64_t pause_after(unsigned quiet, std::int64_t most) noexcept {
  constexpr unsigned kMostDoublings = 10;
  return std::min(kLeastPause << std::min(quiet, kMostDoublings), most);
}

/// A rank reads a record itself if another rank has not sent it within this time after it was needed.
inline constexpr std::int64_t kPatienceNs = 1'000'000'000;

}  // namespace lmdbio::ranks
