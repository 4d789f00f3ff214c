// Saves and loads the state of the order of a followed database.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "lmdbio/records/rehearsal.h"

namespace lmdbio::records {
namespace {

/// First bytes of a saved state.
constexpr std::uint64_t kMagic = 0x3173626f6d646d6c;

class Writer {
 public:
  void number(std::uint64_t v) { out_.append(reinterpret_cast<const char*>(&v), sizeof v); }
  /// Writes numbers as runs of consecutive ones.
  void numbers(const std::vector<std::uint64_t>& list) {
    write_runs([&](auto&& add) {
      for (const std::uint64_t v : list) add(v);
    });
  }
  void numbers(const NumberSet& set) {
    write_runs([&](auto&& add) { set.for_each(add); });
  }
  /// Ends with a checksum of everything before it.
  std::string take() {
    number(XXH3_64bits(out_.data(), out_.size()));
    return std::move(out_);
  }

 private:
  void write_runs(auto&& for_each) {
    std::vector<std::uint64_t> runs;
    for_each([&](std::uint64_t v) {
      if (!runs.empty() && runs[runs.size() - 2] + runs.back() == v)
        ++runs.back();
      else
        runs.insert(runs.end(), {v, 1});
    });
    number(runs.size() / 2);
    for (const std::uint64_t v : runs) number(v);
  }
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
  /// Reads runs of numbers, each less than `end`, and at most `most` numbers.  Calls use(first, count).  The
  /// numbers of all lists are at most those that the constructor was given.
  template <class Use>
  void runs(std::uint64_t most, std::uint64_t end, Use&& use) {
    most = std::min(most, left_);
    std::uint64_t all = 0;
    for (std::uint64_t runs = number(); runs > 0 && good_; --runs) {
      const std::uint64_t first = number(), n = number();
      if (n > most - all || first > end || n > end - first) good_ = false;
      if (!good_) return;
      use(first, n);
      all += n;
    }
    left_ -= all;
  }
  std::vector<std::uint64_t> numbers(std::uint64_t most, std::uint64_t end) {
    std::vector<std::uint64_t> out;
    runs(most, end, [&](std::uint64_t first, std::uint64_t n) {
      for (std::uint64_t i = 0; i < n; ++i) out.push_back(first + i);
    });
    return out;
  }
  /// Does the same for numbers that ascend.
  NumberSet set(std::uint64_t most, std::uint64_t end) {
    NumberSet out;
    std::uint64_t next = 0;
    runs(most, end, [&](std::uint64_t first, std::uint64_t n) {
      if (first < next) good_ = false;
      if (!good_) return;
      out.add(first, n);
      next = first + n;
    });
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
    if (swaps())
      w.numbers(r.slots);
    else
      w.numbers(r.numbers);
  }
  w.numbers(pending_);
  auto label = labels_.begin();
  pending_.for_each([&](std::uint64_t number) {
    if (terms_.kind != BufferKind::per_class) return;
    while (label->number != number) ++label;
    w.number(label->label);
  });
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
    if (swaps())
      r.slots = in.numbers(most, next_number_);
    else
      r.numbers = in.set(most, next_number_);
    if (r.label != label || r.seen < r.size()) return false;
  }
  pending_ = in.set(next_number_, next_number_);
  labels_.clear();
  pending_.for_each([&](std::uint64_t number) {
    if (is_per_class && in.good()) labels_.push_back({number, in.number()});
  });
  drawn_.clear();
  for (std::uint64_t b = 0; b <= terms_.lag && in.good(); ++b)
    drawn_.push_back(in.numbers(terms_.old, next_number_));
  return in.ended();
}

}  // namespace lmdbio::records
