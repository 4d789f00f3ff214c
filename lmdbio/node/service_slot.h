// A slot: the place of one request of a program to the server of its node, in shared memory.
//
//          take            ask             accept            finish
//   free ---------> taken -----> asked ------------> serving -------> done
//     ^               |            |                    |               |
//     |    give_up    |  give_up   |                    | give_up       |
//     +---------------+------------+                    v               |
//     ^                                             given up            |
//     |                     finish                      |               | free_slot
//     +------------------------------------------------+---------------+
//
// The program makes the transitions take, ask, give_up and free_slot; the server makes accept and finish. The
// memory of a slot belongs to the program while it is `taken` and `done`, and to the server while it is
// `serving` or `given up`.  A program that dies leaves its slot `taken`, `asked` or `done`; the server frees
// it.
#pragma once

#include <atomic>
#include <cstdint>

namespace lmdbio::node {

/// The word of a slot, on which the program sleeps.  Bits 0-2: state; 3-31: the number of the request, so
/// that the word of one request is never that of the next one.
class SlotValue {
 public:
  enum class State : unsigned char { free, taken, asked, serving, given_up, done };

  constexpr explicit SlotValue(std::uint32_t bits) noexcept : bits_(bits) {}
  constexpr std::uint32_t bits() const noexcept { return bits_; }
  constexpr State state() const noexcept { return static_cast<State>(bits_ & 7); }
  constexpr SlotValue with(State s) const noexcept {
    return SlotValue((bits_ & ~7u) | static_cast<std::uint32_t>(s));
  }
  /// Returns the value of the next request, in the state `taken`.
  constexpr SlotValue next() const noexcept { return SlotValue(bits_ + 8).with(State::taken); }
  friend bool operator==(SlotValue, SlotValue) = default;

 private:
  std::uint32_t bits_;
};

using SlotWord = std::atomic<std::uint32_t>;

/// Changes the state of the word from that of `now`.  Returns false, and sets `now` to the current value, if
/// the word is not `now` any more.
inline bool change(SlotWord& word, SlotValue& now, SlotValue to) noexcept {
  std::uint32_t bits = now.bits();
  const bool changed = word.compare_exchange_strong(bits, to.bits());
  now = SlotValue(changed ? to.bits() : bits);
  return changed;
}

/// Takes a free slot for a request.  Returns false if it is not free.
inline bool take(SlotWord& word, SlotValue& out) noexcept {
  out = SlotValue(word.load());
  return out.state() == SlotValue::State::free && change(word, out, out.next());
}

enum class GaveUp : unsigned char { yes, is_done };

/// Ends the interest in a request that was asked.  Returns is_done if the server has just finished it: the
/// slot is then still the caller's.
inline GaveUp give_up(SlotWord& word, SlotValue request) noexcept {
  using State = SlotValue::State;
  SlotValue now = request.with(State::asked);
  if (change(word, now, request.with(State::free))) return GaveUp::yes;
  if (now == request.with(State::serving) && change(word, now, request.with(State::given_up)))
    return GaveUp::yes;
  return now == request.with(State::done) ? GaveUp::is_done : GaveUp::yes;
}

/// Ends the service of a request.  Returns true if the program may be waiting for it.
inline bool finish(SlotWord& word, SlotValue request) noexcept {
  using State = SlotValue::State;
  SlotValue now = request.with(State::serving);
  if (change(word, now, request.with(State::done))) return true;
  now = request.with(State::given_up);
  (void)change(word, now, request.with(State::free));
  return false;
}

}  // namespace lmdbio::node
