#include "lmdbio/ahead/stride.h"

namespace lmdbio::ahead {

void Stride::observe(std::uint64_t number, Seen seen) noexcept {
  if (number > next_) unknown_since_ += number - next_;
  next_ = number + 1;
  switch (seen) {
    case Seen::unknown:
      ++unknown_since_;
      return;
    case Seen::unused:
      ++unused_;
      ++unused_in_a_row_;
      in_a_row_ = 0;
      if (!predicts(number)) return;
      clean_ = 0;
      // A guess that rests on one distance fails with the first value that is not used.
      if (++missed_ >= kMostMissed || sure_ < kEstablished) give_up_guess();
      return;
    case Seen::used:
      unused_in_a_row_ = 0;
      note_used(number);
      return;
  }
}

void Stride::note_used(std::uint64_t number) noexcept {
  const bool first = !any_used_;
  const std::uint64_t distance = first ? 0 : number - last_;
  in_a_row_ = first || distance != 1 ? 1 : in_a_row_ + 1;
  if (in_a_row_ >= kDense) dense_ = true;
  if (!first && unknown_since_ != 0 && period_ == 0) ++unclear_;
  if (!first) {
    if (distance == distance_) {
      ++same_;
    } else {
      distance_ = unknown_since_ == 0 ? distance : 0;
      same_ = distance_ != 0 ? 1 : 0;
    }
  }
  any_used_ = true;
  last_ = number;
  unknown_since_ = 0;
  if (period_ == 0) {
    guess_anew(number);
  } else if (predicts(number)) {
    anchor_ = number;
    ++sure_;
    if (++clean_ >= kFairlyClean) missed_ = 0;
    if (clean_ >= kClean) changes_ = extras_ = 0;
  } else {
    clean_ = 0;
    if (++extras_ >= kMostExtras || sure_ < kEstablished) {
      give_up_guess();
      guess_anew(number);
    }
  }
}

void Stride::give_up_guess() noexcept {
  ++changes_;
  period_ = 0;
  sure_ = extras_ = missed_ = clean_ = 0;
}

void Stride::guess_anew(std::uint64_t number) noexcept {
  if (distance_ < 2) return;
  period_ = distance_;
  anchor_ = number;
  sure_ = same_;
}

}  // namespace lmdbio::ahead
