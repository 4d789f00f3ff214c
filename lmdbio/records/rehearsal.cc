#include "lmdbio/records/rehearsal.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "lmdbio/base/mix.h"
#include "lmdbio/records/order.h"

namespace lmdbio::records {
namespace {

/// Maps a random number to one below `n`.
std::uint64_t below(std::uint64_t random, std::uint64_t n) noexcept {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(Wide{random} * n >> 64);
}

constexpr auto by_number = [](const RemovedSample& a, const RemovedSample& b) { return a.number < b.number; };

/// Removes elements of a list whose numbers ascend: those that `gone` has, in the same order.  Removes them
/// from `gone`, too.  Returns their number.
template <class List, class NumberOf>
std::size_t take_out(List& list, std::vector<RemovedSample>& gone, NumberOf&& number) {
  std::vector<typename List::iterator> found;
  auto at = list.begin();
  std::erase_if(gone, [&](const RemovedSample& s) {
    at = std::lower_bound(at, list.end(), s.number, [&](const auto& x, auto n) { return number(x) < n; });
    if (at == list.end() || number(*at) != s.number) return false;
    found.push_back(at++);
    return true;
  });
  const std::size_t n = found.size();
  if (n == 0) return 0;
  if (static_cast<std::size_t>(found.back() - found.front()) + 1 == n) {
    list.erase(found.front(), found.back() + 1);  // moves the shorter side
    return n;
  }
  found.push_back(list.end());
  auto to = found.front();
  for (std::size_t i = 0; i < n; ++i) to = std::move(found[i] + 1, found[i + 1], to);
  list.erase(to, list.end());
  return n;
}

/// First bytes of a saved state.
constexpr std::uint64_t kMagic = 0x3173626f6d646d6c;

class Writer {
 public:
  void number(std::uint64_t v) { out_.append(reinterpret_cast<const char*>(&v), sizeof v); }
  /// Writes numbers as runs of consecutive ones.
  void numbers(const auto& list) {
    std::vector<std::uint64_t> runs;
    for (const std::uint64_t v : list) {
      if (!runs.empty() && runs[runs.size() - 2] + runs.back() == v)
        ++runs.back();
      else
        runs.insert(runs.end(), {v, 1});
    }
    number(runs.size() / 2);
    for (const std::uint64_t v : runs) number(v);
  }
  /// Ends with a checksum of everything before it.
  std::string take() {
    number(XXH3_64bits(out_.data(), out_.size()));
    return std::move(out_);
  }

 private:
  std::string out_;
};

class Parser {
 public:
  Parser(Bytes in, std::uint64_t most) noexcept : in_(in), left_(most) {
    good_ = in.size() >= 8 && in.size() % 8 == 0;
    if (!good_) return;
    in_ = in.first(in.size() - 8);
    good_ = load<std::uint64_t>(in, in_.size()) == XXH3_64bits(in_.data(), in_.size());
  }
  std::uint64_t number() noexcept {
    if (!good_ || in_.size() < 8) {
      good_ = false;
      return 0;
    }
    const auto v = load<std::uint64_t>(in_.data());
    in_ = in_.subspan(8);
    return v;
  }
  /// Reads at most `most` numbers, each less than `end`.  The numbers of all lists are at most those that
  /// the constructor was given.
  std::vector<std::uint64_t> numbers(std::uint64_t most, std::uint64_t end) {
    most = std::min(most, left_);
    std::vector<std::uint64_t> out;
    for (std::uint64_t runs = number(); runs > 0 && good_; --runs) {
      const std::uint64_t first = number(), n = number();
      if (n > most - out.size() || first > end || n > end - first) good_ = false;
      for (std::uint64_t i = 0; i < n && good_; ++i) out.push_back(first + i);
    }
    left_ -= out.size();
    return out;
  }
  bool good() const noexcept { return good_; }
  bool ended() const noexcept { return good_ && in_.empty(); }

 private:
  Bytes in_;
  std::uint64_t left_;
  bool good_ = true;
};

}  // namespace

Rehearsal::Rehearsal(const RehearsalTerms& terms)
    : terms_(terms),
      arrival_key_(mix(terms.seed + 1)),
      buffer_key_(mix(terms.seed + 2)),
      substitute_key_(mix(terms.seed + 3)) {
  if (terms.lag > kMostLag) throw std::bad_alloc();
  for (std::uint64_t b = 0; b <= terms_.lag; ++b) draw();
}

// --- the log ---

void Rehearsal::start(std::uint64_t count, std::span<const std::uint64_t> labels) {
  for (std::uint64_t i = 0; i < count; ++i) add(next_number_++, labels.empty() ? 0 : labels[i]);
  drawn_.clear();
  for (std::uint64_t b = 0; b <= terms_.lag; ++b) draw();
}

std::uint64_t Rehearsal::arrive(std::uint64_t count, std::span<const std::uint64_t> labels) {
  ++entries_;
  const std::uint64_t first = next_number_;
  for (std::uint64_t i = 0; i < count; ++i)
    pending_.push_back({next_number_++, labels.empty() ? 0 : labels[record_of(count, i)]});
  return first;
}

std::uint64_t Rehearsal::record_of(std::uint64_t count, std::uint64_t i) const noexcept {
  return shuffle(arrival_key_, entries_, count, i);
}

void Rehearsal::remove(std::span<const RemovedSample> samples) {
  std::vector<RemovedSample> gone(samples.begin(), samples.end());
  std::sort(gone.begin(), gone.end(), by_number);
  gone.erase(std::unique(gone.begin(), gone.end(), [](auto& a, auto& b) { return a.number == b.number; }),
             gone.end());
  const std::vector<RemovedSample> all = gone;
  (void)take_out(pending_, gone, [](const Pending& p) { return p.number; });
  if (swaps()) {
    remove_from_reservoirs(gone);
  } else if (!buffers_.empty()) {
    const std::size_t n = take_out(buffers_[0].slots, gone, [](std::uint64_t number) { return number; });
    buffers_[0].gaps += n;
    buffers_[0].seen -= n;
  }
  for (const RemovedSample& s : gone) remove_forgotten(s.label);
  const auto is_gone = [&](std::uint64_t number) {
    return std::binary_search(all.begin(), all.end(), RemovedSample{number}, by_number);
  };
  const std::uint64_t left = total();
  for (std::size_t b = 0; b < drawn_.size(); ++b) {
    std::vector<std::uint64_t>& draws = drawn_[b];
    for (std::size_t k = 0; k < draws.size(); ++k)
      if (left != 0 && is_gone(draws[k]))
        draws[k] = nth(below(mix(substitute_key_ ^ mix((batch_ + b) * terms_.old + k)), left));
    if (left == 0) std::erase_if(draws, is_gone);
  }
}

// Removes samples from their slots, and from `gone`.  Each slot is filled with the sample of the last one.
void Rehearsal::remove_from_reservoirs(std::vector<RemovedSample>& gone) {
  if (places_.empty()) {
    for (std::size_t b = 0; b < buffers_.size(); ++b)
      for (std::size_t i = 0; i < buffers_[b].slots.size(); ++i) places_[buffers_[b].slots[i]] = {b, i};
  }
  std::erase_if(gone, [&](const RemovedSample& s) {
    const auto found = places_.find(s.number);
    if (found == places_.end()) return false;
    const Place at = found->second;
    Reservoir& r = buffers_[at.buffer];
    const std::uint64_t last = r.slots.back();
    r.slots[at.slot] = last;
    places_[last] = at;
    r.slots.pop_back();
    places_.erase(s.number);
    --r.seen;
    ++r.gaps;
    return true;
  });
}

void Rehearsal::remove_forgotten(std::uint64_t label) {
  Reservoir& r = of(label);
  if (r.seen == r.slots.size()) return;
  --r.seen;
  ++r.gaps_outside;
}

// --- buffers ---

Rehearsal::Reservoir& Rehearsal::of(std::uint64_t label) {
  if (terms_.kind != BufferKind::per_class) label = 0;
  const auto [at, is_new] = by_label_.try_emplace(label, buffers_.size());
  if (is_new) {
    buffers_.emplace_back();
    buffers_.back().label = label;
  }
  return buffers_[at->second];
}

void Rehearsal::add(std::uint64_t number, std::uint64_t label) {
  Reservoir& r = of(label);
  ++r.seen;
  if (terms_.kind == BufferKind::all || terms_.kind == BufferKind::ring) {
    r.slots.push_back(number);
    if (terms_.kind == BufferKind::ring && r.slots.size() > terms_.capacity) r.slots.pop_front();
    return;
  }
  // Algorithm R, with random pairing for removed samples (Gemulla, Lehner, Haas, "Maintaining bounded-size
  // sample synopses of evolving datasets", 2008): a new sample takes the place of a removed one, which was in
  // the buffer or not.
  const std::uint64_t random = mix(buffer_key_ ^ mix(number));
  std::size_t slot = r.slots.size();
  if (const std::uint64_t gaps = r.gaps + r.gaps_outside; gaps != 0) {
    if (below(random, gaps) >= r.gaps) {
      --r.gaps_outside;
      return;
    }
    --r.gaps;
    r.slots.push_back(number);
  } else if (r.slots.size() < terms_.capacity) {
    r.slots.push_back(number);
  } else if (slot = below(random, r.seen); slot < terms_.capacity) {
    if (!places_.empty()) places_.erase(r.slots[slot]);
    r.slots[slot] = number;
  } else {
    return;
  }
  if (!places_.empty()) places_[number] = {static_cast<std::size_t>(&r - buffers_.data()), slot};
}

std::uint64_t Rehearsal::total() const noexcept {
  std::uint64_t n = 0;
  for (const Reservoir& r : buffers_) n += r.slots.size();
  return n;
}

std::uint64_t Rehearsal::nth(std::uint64_t i) const noexcept {
  for (const Reservoir& r : buffers_) {
    if (i < r.slots.size()) return r.slots[i];
    i -= r.slots.size();
  }
  return 0;
}

// Returns the next of `n` places, `n` > 0: all of them in a random order, then again in another one.
std::uint64_t Rehearsal::Pass::next(std::uint64_t key, std::uint64_t n) noexcept {
  if (position == size || n != size) {
    ++begun;
    position = 0;
    size = n;
  }
  return shuffle(key, begun - 1, size, position++);
}

// Draws the old samples of a batch from the buffer as it is now.
void Rehearsal::draw() {
  std::vector<Reservoir*> filled;
  for (Reservoir& r : buffers_)
    if (!r.slots.empty()) filled.push_back(&r);
  std::vector<std::uint64_t>& draws = drawn_.emplace_back();
  const std::uint64_t count = std::min(terms_.old, total());
  for (std::uint64_t k = 0; k < count; ++k) {
    Reservoir& r = *filled[turns_.next(terms_.seed, filled.size())];
    const std::uint64_t key = terms_.kind == BufferKind::per_class ? terms_.seed ^ mix(r.label) : terms_.seed;
    draws.push_back(r.slots[r.pass.next(key, r.slots.size())]);
  }
}

// --- batches ---

Rehearsal::Batch Rehearsal::next() {
  Batch out;
  for (std::uint64_t k = 0; k < terms_.fresh && !pending_.empty(); ++k) {
    const Pending p = pending_.front();
    pending_.pop_front();
    out.fresh.push_back(p.number);
    add(p.number, p.label);
  }
  out.old = std::move(drawn_.front());
  drawn_.pop_front();
  ++batch_;
  draw();
  return out;
}

std::vector<std::uint64_t> Rehearsal::live() const {
  std::vector<std::uint64_t> out;
  for (const Pending& p : pending_) out.push_back(p.number);
  for (const Reservoir& r : buffers_) out.insert(out.end(), r.slots.begin(), r.slots.end());
  for (const std::vector<std::uint64_t>& draws : drawn_) out.insert(out.end(), draws.begin(), draws.end());
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

// --- the state ---

std::string Rehearsal::save() const {
  Writer w;
  for (const std::uint64_t v :
       {kMagic, terms_.seed, terms_.fresh, terms_.old, terms_.lag,
        std::uint64_t{static_cast<unsigned char>(terms_.kind)}, terms_.capacity, batch_, next_number_,
        entries_, turns_.begun, turns_.position, turns_.size, std::uint64_t{buffers_.size()}})
    w.number(v);
  for (const Reservoir& r : buffers_) {
    for (const std::uint64_t v :
         {r.label, r.seen, r.gaps, r.gaps_outside, r.pass.begun, r.pass.position, r.pass.size})
      w.number(v);
    w.numbers(r.slots);
  }
  std::vector<std::uint64_t> numbers;
  for (const Pending& p : pending_) numbers.push_back(p.number);
  w.numbers(numbers);
  const bool labels = terms_.kind == BufferKind::per_class;
  for (const Pending& p : pending_)
    if (labels) w.number(p.label);
  for (const std::vector<std::uint64_t>& draws : drawn_) w.numbers(draws);
  return w.take();
}

bool Rehearsal::load(Bytes state, std::uint64_t most_samples) {
  Parser in(state, most_samples);
  for (const std::uint64_t v : {kMagic, terms_.seed, terms_.fresh, terms_.old, terms_.lag,
                                std::uint64_t{static_cast<unsigned char>(terms_.kind)}, terms_.capacity})
    if (in.number() != v) return false;
  batch_ = in.number();
  next_number_ = in.number();
  entries_ = in.number();
  const auto read = [&in](Pass& p) {
    p.begun = in.number();
    p.position = in.number();
    p.size = in.number();
  };
  read(turns_);
  const bool is_per_class = terms_.kind == BufferKind::per_class;
  const std::uint64_t most = terms_.kind == BufferKind::all ? next_number_ : terms_.capacity;
  buffers_.clear();
  by_label_.clear();
  places_.clear();
  const std::uint64_t buffers = in.number();
  if (!in.good() || (!is_per_class && buffers > 1)) return false;
  for (std::uint64_t i = 0; i < buffers && in.good(); ++i) {
    const std::uint64_t label = in.number();
    if (by_label_.contains(label)) return false;
    Reservoir& r = of(label);
    r.seen = in.number();
    r.gaps = in.number();
    r.gaps_outside = in.number();
    read(r.pass);
    for (const std::uint64_t number : in.numbers(most, next_number_)) r.slots.push_back(number);
    if (r.label != label || r.seen < r.slots.size()) return false;
  }
  pending_.clear();
  for (const std::uint64_t number : in.numbers(next_number_, next_number_)) pending_.push_back({number, 0});
  for (Pending& p : pending_)
    if (is_per_class) p.label = in.number();
  drawn_.clear();
  for (std::uint64_t b = 0; b <= terms_.lag && in.good(); ++b)
    drawn_.push_back(in.numbers(terms_.old, next_number_));
  return in.ended();
}

}  // namespace lmdbio::records
