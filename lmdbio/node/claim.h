// A claim: one word of shared memory that tells which process of the node reads a chunk.
//
//            claim                 release(good)
//   free ------------> claimed ------------------> filled
//     ^                 |   ^                         |
//     | release(failed) |   |          claim          |
//     +-----------------+   +-------------------------+
//                   take_over: claimed by another process
//
// A claim is advice.  Two processes may still read the same chunk, or one may wait for a process that has
// died.  Both only cost time.  No result of an LMDB call depends on the word.  A process that waits sets a
// flag in the word, so that release() makes a system call only if a process waits.
// tests/unit/node_claim_test.cc proves this code by running all interleavings.
#pragma once

#include <concepts>
#include <cstdint>

namespace lmdbio::node {

/// A process that claims chunks: its row in the node table, and its number among the processes of that row.
enum class Claimer : std::uint16_t {};

/// The value of a claim word at one time.
///
/// Bits 0-1: state; 2: a process waits; 3-18: the claimer; 19-31: a number that differs between one claim of
/// the chunk and the next; 32-63: a tag, which tells states
/// of the chunk's bytes apart.  Waiters sleep on the lower half.
class ClaimValue {
 public:
  enum class State : unsigned char { free, claimed, filled };

  ClaimValue() = default;
  explicit constexpr ClaimValue(std::uint64_t bits) noexcept : bits_(bits) {}
  constexpr std::uint64_t bits() const noexcept { return bits_; }
  constexpr std::uint32_t low() const noexcept { return static_cast<std::uint32_t>(bits_); }
  constexpr State state() const noexcept {
    const auto s = static_cast<unsigned char>(bits_ & 3);
    return s == 1 ? State::claimed : s == 2 ? State::filled : State::free;
  }
  constexpr bool is_waited_for() const noexcept { return (bits_ & kWaited) != 0; }
  constexpr Claimer claimer() const noexcept { return Claimer{static_cast<std::uint16_t>(bits_ >> 3)}; }
  constexpr std::uint32_t tag() const noexcept { return static_cast<std::uint32_t>(bits_ >> 32); }
  /// Returns true if both are the same claim, whether a process waits or not.
  constexpr bool is_same(ClaimValue other) const noexcept { return ((bits_ ^ other.bits_) & ~kWaited) == 0; }

  constexpr ClaimValue waited_for() const noexcept { return ClaimValue(bits_ | kWaited); }
  /// Returns the claim of `claimer` that follows this one.  Processes that wait for this claim then wait for
  /// the next one.
  constexpr ClaimValue claimed_by(Claimer claimer, std::uint32_t tag) const noexcept {
    const std::uint64_t number = (bits_ + kNumber) & kNumbers, who = static_cast<std::uint16_t>(claimer);
    return ClaimValue(std::uint64_t{tag} << 32 | number | who << 3 | (bits_ & kWaited) | 1);
  }
  constexpr ClaimValue released(bool good) const noexcept {
    return ClaimValue((bits_ & ~(kWaited | 3)) | (good ? 2u : 0u));
  }

 private:
  static constexpr std::uint64_t kWaited = 4, kNumber = 1 << 19, kNumbers = 0xfff8'0000;
  std::uint64_t bits_ = 0;
};

/// A word that several processes change: in shared memory, or in a test's model of it.
template <class T>
concept SharedWord = requires(T word, ClaimValue& expected, ClaimValue desired) {
  { word.load() } -> std::same_as<ClaimValue>;
  /// Sets the word to `desired` if it is `expected`; otherwise sets `expected` to the word's value.
  { word.compare_exchange(expected, desired) } -> std::same_as<bool>;
  word.wake();  ///< wakes all processes that sleep on the word
};

/// Claims the chunk for `claimer`.  Returns true if the claim is made; pass `out` to release() later.
/// Returns false if another process reads the chunk for the same tag; `out` is then the claim of that
/// process.
template <SharedWord Word>
bool claim(Word word, Claimer claimer, std::uint32_t tag, ClaimValue& out) noexcept {
  ClaimValue now = word.load();
  for (;;) {
    if (now.state() == ClaimValue::State::claimed && now.tag() == tag) {
      out = now;
      return false;
    }
    const ClaimValue mine = now.claimed_by(claimer, tag);
    if (word.compare_exchange(now, mine)) {
      out = mine;
      return true;
    }
  }
}

enum class Look : unsigned char {
  mine,     ///< the claim is made, as when claim() returns true
  claimed,  ///< another process reads the chunk, as when claim() returns false
  filled,   ///< the chunk was filled for the same tag, by the claimer of `out`
};

/// As claim(), for a chunk that is kept by the process that filled it.  Claims the chunk only if it was not
/// filled.
template <SharedWord Word>
Look claim_unless_filled(Word word, Claimer claimer, std::uint32_t tag, ClaimValue& out) noexcept {
  ClaimValue now = word.load();
  for (;;) {
    if (now.state() != ClaimValue::State::free && now.tag() == tag) {
      out = now;
      return now.state() == ClaimValue::State::filled ? Look::filled : Look::claimed;
    }
    const ClaimValue mine = now.claimed_by(claimer, tag);
    if (word.compare_exchange(now, mine)) {
      out = mine;
      return Look::mine;
    }
  }
}

/// Takes over the claim `out` of a process that makes no progress, or that has filled the chunk and does not
/// keep it.  Returns true if the claim is made; pass `out` to release() later.  Returns false if the old
/// claim has ended or was taken over; `out` is then the current value of the word.
template <SharedWord Word>
bool take_over(Word word, Claimer claimer, ClaimValue& out) noexcept {
  ClaimValue now = out;
  for (;;) {
    const ClaimValue mine = now.claimed_by(claimer, now.tag());
    if (word.compare_exchange(now, mine)) {
      out = mine;
      return true;
    }
    if (!now.is_same(out)) {
      out = now;
      return false;
    }
  }
}

/// Ends the claim `mine`.  `good`: the chunk was read.  Returns false if another process has taken the claim
/// over.
template <SharedWord Word>
bool release(Word word, ClaimValue mine, bool good) noexcept {
  ClaimValue now = mine;
  while (!word.compare_exchange(now, now.released(good)))
    if (!now.is_same(mine)) return false;
  if (now.is_waited_for()) word.wake();
  return true;
}

/// Announces that this process is about to sleep until `claim` ends.  Returns true if it may sleep, as
/// long as the lower half of the word equals the lower half of `claim`.  Returns false if the claim has
/// ended.
template <SharedWord Word>
bool announce_wait(Word word, ClaimValue& claim) noexcept {
  ClaimValue now = word.load();
  while (now.is_same(claim)) {
    if (now.is_waited_for() || word.compare_exchange(now, now.waited_for())) {
      claim = now.waited_for();
      return true;
    }
  }
  return false;
}

/// Result of a sleep in wait().
enum class Slept : unsigned char {
  look,     ///< the word may have changed
  give_up,  ///< the claim takes too long and is void from now on
  abandon,  ///< the word must not be accessed any more
};

enum class Ended : unsigned char { brought, given_up };

/// Waits until `claim` of another process ends.  `sleep(claim)` sleeps for a limited time while the lower
/// half of the word equals that of `claim`.
template <SharedWord Word, class Sleep>
Ended wait(Word word, ClaimValue claim, Sleep&& sleep) noexcept {
  while (announce_wait(word, claim)) {
    const Slept slept = sleep(claim);
    if (slept == Slept::abandon) return Ended::given_up;
    if (slept == Slept::give_up) {
      (void)release(word, claim, false);  // other waiters claim the chunk anew
      return Ended::given_up;
    }
  }
  return word.load().state() == ClaimValue::State::filled ? Ended::brought : Ended::given_up;
}

}  // namespace lmdbio::node
