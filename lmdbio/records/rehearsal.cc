#include "lmdbio/records/rehearsal.h"

#include <algorithm>
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
  if (swaps()) {
    for (std::uint64_t i = 0; i < count; ++i) add(next_number_ + i, labels.empty() ? 0 : labels[i]);
  } else if (count != 0) {  // as if each of them were added
    const std::uint64_t kept = terms_.kind == BufferKind::ring ? std::min(count, terms_.capacity) : count;
    Reservoir& r = of(0);
    r.seen += count;
    r.numbers.add(next_number_ + count - kept, kept);
  }
  next_number_ += count;
  drawn_.clear();
  for (std::uint64_t b = 0; b <= terms_.lag; ++b) draw();
}

std::uint64_t Rehearsal::arrive(std::uint64_t count, std::span<const std::uint64_t> labels) {
  ++entries_;
  const std::uint64_t first = next_number_;
  if (terms_.kind == BufferKind::per_class)
    for (std::uint64_t i = 0; i < count; ++i)
      labels_.push_back({first + i, labels.empty() ? 0 : labels[record_of(count, i)]});
  pending_.add(first, count);
  next_number_ += count;
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
  for (const RemovedSample& s : gone) {
    if (pending_.erase(s.number)) continue;
    if (swaps()) {
      if (remove_from_reservoirs(s.number)) continue;
    } else if (!buffers_.empty() && buffers_[0].numbers.erase(s.number)) {
      ++buffers_[0].gaps;
      --buffers_[0].seen;
      continue;
    }
    remove_forgotten(s.label);
  }
  const auto is_gone = [&](std::uint64_t number) {
    return std::binary_search(gone.begin(), gone.end(), RemovedSample{number}, by_number);
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

// Removes a sample from its slot, which is filled with the sample of the last one.  Returns false if it has
// none.
bool Rehearsal::remove_from_reservoirs(std::uint64_t number) {
  if (places_.empty()) {
    for (std::size_t b = 0; b < buffers_.size(); ++b)
      for (std::size_t i = 0; i < buffers_[b].slots.size(); ++i) places_[buffers_[b].slots[i]] = {b, i};
  }
  const auto found = places_.find(number);
  if (found == places_.end()) return false;
  const Place at = found->second;
  Reservoir& r = buffers_[at.buffer];
  const std::uint64_t last = r.slots.back();
  r.slots[at.slot] = last;
  places_[last] = at;
  r.slots.pop_back();
  places_.erase(number);
  --r.seen;
  ++r.gaps;
  return true;
}

void Rehearsal::remove_forgotten(std::uint64_t label) {
  Reservoir& r = of(label);
  if (r.seen == r.size()) return;
  --r.seen;
  ++r.gaps_outside;
}

// --- buffers ---

Rehearsal::Reservoir& Rehearsal::of(std::uint64_t label) {
  if (terms_.kind != BufferKind::per_class) {
    if (!buffers_.empty()) return buffers_[0];
    label = 0;
  }
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
    r.numbers.add(number);
    if (terms_.kind == BufferKind::ring && r.numbers.size() > terms_.capacity) (void)r.numbers.pop_front();
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
  for (const Reservoir& r : buffers_) n += r.size();
  return n;
}

std::uint64_t Rehearsal::nth(std::uint64_t i) const noexcept {
  for (const Reservoir& r : buffers_) {
    if (i < r.size()) return r.at(i);
    i -= r.size();
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
    if (r.size() != 0) filled.push_back(&r);
  std::vector<std::uint64_t>& draws = drawn_.emplace_back();
  const std::uint64_t count = std::min(terms_.old, total());
  draws.reserve(static_cast<std::size_t>(count));
  for (std::uint64_t k = 0; k < count; ++k) {
    Reservoir& r = *filled[turns_.next(terms_.seed, filled.size())];
    const std::uint64_t key = terms_.kind == BufferKind::per_class ? terms_.seed ^ mix(r.label) : terms_.seed;
    draws.push_back(r.at(r.pass.next(key, r.size())));
  }
}

// --- batches ---

Rehearsal::Batch Rehearsal::next() {
  Batch out;
  out.fresh.reserve(static_cast<std::size_t>(std::min(terms_.fresh, pending_.size())));
  for (std::uint64_t k = 0; k < terms_.fresh && pending_.size() != 0; ++k) {
    const std::uint64_t number = pending_.pop_front();
    out.fresh.push_back(number);
    add(number, terms_.kind == BufferKind::per_class ? label_of_next(number) : 0);
  }
  out.old = std::move(drawn_.front());
  drawn_.pop_front();
  ++batch_;
  draw();
  return out;
}

// Drops the labels up to that of a pending sample.
std::uint64_t Rehearsal::label_of_next(std::uint64_t number) noexcept {
  while (labels_.front().number != number) labels_.pop_front();
  const std::uint64_t label = labels_.front().label;
  labels_.pop_front();
  return label;
}

std::uint64_t Rehearsal::most_live() const noexcept {
  return pending_.size() + total() + (terms_.lag + 1) * drawn_.back().capacity();
}

std::uint64_t Rehearsal::memory_bytes() const noexcept {
  // A node of a hash table has a pointer, and malloc() adds one; there is about one bucket for each node.
  constexpr std::uint64_t kNode = 3 * sizeof(void*);
  std::uint64_t bytes =
      pending_.memory_bytes() + labels_.size() * sizeof(Label) + buffers_.capacity() * sizeof(Reservoir) +
      by_label_.size() * (sizeof(*by_label_.begin()) + kNode) +
      places_.size() * (sizeof(*places_.begin()) + kNode) +
      drawn_.size() * (sizeof(drawn_[0]) + drawn_.back().capacity() * sizeof(std::uint64_t));
  for (const Reservoir& r : buffers_)
    bytes += r.slots.capacity() * sizeof(std::uint64_t) + r.numbers.memory_bytes();
  return bytes;
}

std::vector<std::uint64_t> Rehearsal::live() const {
  std::vector<std::uint64_t> out;
  const auto add_to = [&](std::uint64_t number) { out.push_back(number); };
  for (const Reservoir& r : buffers_) {
    r.numbers.for_each(add_to);
    out.insert(out.end(), r.slots.begin(), r.slots.end());
  }
  pending_.for_each(add_to);
  for (const std::vector<std::uint64_t>& draws : drawn_) out.insert(out.end(), draws.begin(), draws.end());
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace lmdbio::records
