// Finds out from observations which values of a walk a program reads, if they follow a rule.  Pure.
#pragma once

#include <cstdint>

namespace lmdbio::ahead {

/// Recognizes a constant stride in the use of values.  Values are numbered in the order of the walk.  Each
/// value is observed once, in this order.
class Stride {
 public:
  enum class Seen : unsigned char { unused, used, unknown };
  enum class Verdict : unsigned char {
    unknown,    ///< too little was seen, or nothing is used
    dense,      ///< all are read; final
    stride,     ///< every period()-th is read, three times or more in a row
    irregular,  ///< guesses have failed repeatedly, or too much is unknown for a guess
  };

  /// Records whether value `number` is used.  Skipped numbers count as Seen::unknown.
  void observe(std::uint64_t number, Seen seen) noexcept;

  Verdict verdict() const noexcept {
    if (dense_) return Verdict::dense;
    if (changes_ >= kMostChanges || unclear_ >= kMostUnclear) return Verdict::irregular;
    return period_ != 0 && sure_ >= kEstablished ? Verdict::stride : Verdict::unknown;
  }
  /// Returns the guessed distance of used values, 2 or more; 0: no guess.  A guess exists as soon as one
  /// distance is known, even before verdict() returns Verdict::stride.
  std::uint64_t period() const noexcept { return period_; }
  /// With a guess: returns how many times in a row the distance was seen, 1 or more.
  unsigned sure() const noexcept { return sure_; }
  /// With a guess: returns whether value `number` is expected to be used.
  bool predicts(std::uint64_t number) const noexcept {
    return period_ != 0 && number > anchor_ && (number - anchor_) % period_ == 0;
  }
  /// With a guess: returns how many values, from `number` on, come before the next used one.  `number` must
  /// be larger than all observed numbers.
  std::uint64_t until_next(std::uint64_t number) const noexcept {
    const std::uint64_t past = (number - anchor_) % period_;
    return past == 0 ? 0 : period_ - past;
  }
  bool seen_unused() const noexcept { return unused_ != 0; }
  bool seen_used() const noexcept { return any_used_; }
  /// Returns the number of Seen::unused in a row.  Seen::unknown does not interrupt the row.
  std::uint64_t unused_in_a_row() const noexcept { return unused_in_a_row_; }

 private:
  static constexpr unsigned kMostUnclear = 8;
  static constexpr unsigned kDense = 3, kEstablished = 2, kMostChanges = 4, kMostExtras = 3, kMostMissed = 2;
  /// After kFairlyClean right guesses in a row, missed uses are forgotten.  After kClean, all failures are.
  static constexpr unsigned kFairlyClean = 4, kClean = 8;

  void note_used(std::uint64_t number) noexcept;
  void give_up_guess() noexcept;
  void guess_anew(std::uint64_t number) noexcept;

  bool dense_ = false, any_used_ = false;
  std::uint64_t next_ = 0;  ///< number expected next
  std::uint64_t unused_ = 0, unused_in_a_row_ = 0;
  // Observations.
  std::uint64_t last_ = 0;           ///< last used value; valid if any_used_
  std::uint64_t unknown_since_ = 0;  ///< unknown values after last_
  std::uint64_t distance_ = 0;       ///< of the last two used values without unknown ones between; 0: none
  unsigned same_ = 0;                ///< equal distances in a row
  unsigned in_a_row_ = 0;            ///< used values in a row, without others between
  // The guess.
  std::uint64_t period_ = 0, anchor_ = 0;
  unsigned sure_ = 0, extras_ = 0, missed_ = 0, clean_ = 0;
  unsigned changes_ = 0;  ///< guesses that failed
  unsigned unclear_ = 0;  ///< used values after unknown ones, while there was no guess
};

}  // namespace lmdbio::ahead
