// Which values of a walk a program reads, as far as they follow a rule: pure, fed with what was seen of each.
#pragma once

#include <cstdint>

namespace lmdbio::db {

/// Values have numbers in the order of the walk; each is told of once, in that order.
class Stride {
 public:
  enum class Seen : unsigned char { unused, used, unknown };
  enum class Verdict : unsigned char {
    unknown,    ///< not enough was seen, or nothing is used
    dense,      ///< all are read; for good
    stride,     ///< every period()-th is, three times or more in a row
    irregular,  ///< guesses have failed again and again, or too much is unknown to make one
  };

  /// Numbers that were left out count as Seen::unknown.
  void observe(std::uint64_t number, Seen seen) noexcept;

  Verdict verdict() const noexcept {
    if (dense_) return Verdict::dense;
    if (changes_ >= kMostChanges || unclear_ >= kMostUnclear) return Verdict::irregular;
    return period_ != 0 && sure_ >= kEstablished ? Verdict::stride : Verdict::unknown;
  }
  /// Distance of the values that are thought to be used, 2 or more; 0: there is no guess.  There is one from
  /// the first distance on, before verdict() says stride.
  std::uint64_t period() const noexcept { return period_; }
  /// With a guess: how often the distance was seen in a row, 1 or more.
  unsigned sure() const noexcept { return sure_; }
  /// With a guess: whether the value is thought to be used.
  bool predicts(std::uint64_t number) const noexcept {
    return period_ != 0 && number > anchor_ && (number - anchor_) % period_ == 0;
  }
  /// With a guess: how many values from `number` on, beyond those seen, come before the next used one.
  std::uint64_t until_next(std::uint64_t number) const noexcept {
    const std::uint64_t past = (number - anchor_) % period_;
    return past == 0 ? 0 : period_ - past;
  }
  bool seen_unused() const noexcept { return unused_ != 0; }
  bool seen_used() const noexcept { return any_used_; }
  /// Seen::unused in a row, with unknown ones between.
  std::uint64_t unused_in_a_row() const noexcept { return unused_in_a_row_; }

 private:
  static constexpr unsigned kMostUnclear = 8;
  static constexpr unsigned kDense = 3, kEstablished = 2, kMostChanges = 4, kMostExtras = 3, kMostMissed = 2;
  static constexpr unsigned kFairlyClean = 4,
                            kClean = 8;  ///< right guesses in a row, and what went wrong is forgotten

  void note_used(std::uint64_t number) noexcept;
  void give_up_guess() noexcept;
  void guess_anew(std::uint64_t number) noexcept;

  bool dense_ = false, any_used_ = false;
  std::uint64_t next_ = 0;  ///< number that comes next
  std::uint64_t unused_ = 0, unused_in_a_row_ = 0;
  // What was seen.
  std::uint64_t last_ = 0;           ///< used; if any_used_
  std::uint64_t unknown_since_ = 0;  ///< after it
  std::uint64_t distance_ = 0;       ///< of the last two, with nothing unknown between; 0: there is none
  unsigned same_ = 0;                ///< distances like that, in a row
  unsigned in_a_row_ = 0;            ///< used ones without any between
  // The guess.
  std::uint64_t period_ = 0, anchor_ = 0;
  unsigned sure_ = 0, extras_ = 0, missed_ = 0, clean_ = 0;
  unsigned changes_ = 0;  ///< guesses that failed
  unsigned unclear_ = 0;  ///< used values with unknown ones before them, while there was no guess
};

}  // namespace lmdbio::db
