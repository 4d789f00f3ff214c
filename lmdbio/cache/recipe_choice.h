// Chooses how the chunks of a database are compressed: tries recipes on a sample, and compares what an epoch
// would cost with each of them.  No I/O, no threads.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/result.h"
#include "lmdbio/cache/codec.h"

namespace lmdbio::cache {

/// A sample of a database has up to this many pieces of kFrameBytes.
inline constexpr unsigned kSamplePlaces = 32;
/// Returns where piece i of the sample starts.  The pieces are spread evenly over the file.
constexpr std::uint64_t sample_offset(unsigned i, std::uint64_t file_bytes) noexcept {
  const std::uint64_t frames = file_bytes / kFrameBytes;
  return std::max<std::uint64_t>(frames, 1) * i / kSamplePlaces * kFrameBytes;
}

/// What a recipe did with a sample.
struct Trial {
  Recipe recipe;
  double ratio = 1;  ///< plain bytes / stored bytes
  /// Plain bytes per second and core, with checksums.  0: none were measured.
  double pack_rate = 0, unpack_rate = 0;
};

struct Trials {
  std::array<Trial, 16> all;
  unsigned count = 0;
  unsigned pieces = 0;  ///< pieces of the sample that were tried, with all recipes

  std::span<const Trial> span() const noexcept { return {all.data(), count}; }
};

/// Nanoseconds of processor time.
using TrialClock = std::uint64_t (*)() noexcept;
/// No further piece is tried after this many nanoseconds.
inline constexpr std::uint64_t kTrialTime = 250'000'000;

/// Returns the width, from 1 to Filter::kLongestDelta, of the delta that leaves the sample with the smallest
/// numbers: a row of an image, a record of a table.
std::uint16_t learn_delta(std::span<const Bytes> sample) noexcept;

/// Tries all codecs of this build with all filters on the pieces of a sample.  The first trial is raw. Pieces
/// have at most kFrameBytes.  Errors: ENOMEM.
Result<Trials> try_recipes(std::span<const Bytes> sample, TrialClock clock, Scratch& scratch) noexcept;

/// Rates in bytes per second, sizes in bytes; all of them above 0 unless stated otherwise.
struct Conditions {
  double image_rate;        ///< reads of the image, of stored bytes
  double original_rate;     ///< reads of the original file
  double program_rate = 0;  ///< what the program consumes; 0: not known, no limit
  unsigned idle_cores = 1;  ///< that decompress while the program prefetches
  double read_bytes = 0;    ///< mean size of the program's reads; 0: not known, large
  bool prefetching = true;  ///< false: the program waits for each read and its decompression
  double budget;            ///< of the image
  double size;              ///< of the database
};

/// Returns the seconds that an epoch takes per byte, with an image of this recipe.
double seconds_per_byte(const Trial& trial, const Conditions& conditions) noexcept;
/// Returns the same without an image.
double seconds_per_byte_without(const Conditions& conditions) noexcept;

/// Data that is compressed by less stays raw: a raw image that is complete is mapped in place of the
/// database, without copies, and lookups use it.
inline constexpr double kLeastRatio = 1.1;

enum class Goal {
  fastest,  ///< the smallest cost; within 2 %, the largest capacity
  /// The largest capacity such that a read from the image takes no longer than a read of the original file,
  /// of a raw image, or (if the program prefetches) than the program takes.  This is the rule of FanStore.
  smallest
};

/// Returns the index of the best trial.  `trials` has at least one, which is raw.
std::size_t choose_recipe(std::span<const Trial> trials, const Conditions& conditions, Goal goal) noexcept;

}  // namespace lmdbio::cache
