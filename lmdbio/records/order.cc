#include "lmdbio/records/order.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <iterator>
#include <utility>

#include "lmdbio/base/mix.h"

namespace lmdbio::records {

namespace {

constexpr std::uint64_t low_bits(unsigned n) noexcept { return (std::uint64_t{1} << n) - 1; }

// A Feistel network permutes all numbers that have as many bits as count - 1, but at least kLeastBits bits.
// Results outside the range pass through the network again (cycle walking: Black, Rogaway, "Ciphers with
// arbitrary finite domains", 2002).  If count is more than 2^(kLeastBits - 1), a number passes fewer than two
// times on average.  With fewer bits, the permutations would not be uniform.
constexpr unsigned kRounds = 8, kLeastBits = 8;

class Network {
 public:
  Network(std::uint64_t seed, std::uint64_t epoch, std::uint64_t count) noexcept
      : low_(std::max(kLeastBits, static_cast<unsigned>(std::bit_width(count - 1))) / 2),
        high_(std::max(kLeastBits, static_cast<unsigned>(std::bit_width(count - 1))) - low_),
        key_(mix(mix(seed) ^ epoch)) {}

  std::uint64_t forward(std::uint64_t x) const noexcept {
    std::uint64_t l = x & low_bits(low_), h = x >> low_;
    for (unsigned round = 0; round < kRounds; ++round) step(round, l, h);
    return h << low_ | l;
  }
  std::uint64_t backward(std::uint64_t x) const noexcept {
    std::uint64_t l = x & low_bits(low_), h = x >> low_;
    for (unsigned round = kRounds; round-- > 0;) step(round, l, h);  // a step is its own inverse
    return h << low_ | l;
  }

 private:
  void step(unsigned round, std::uint64_t& l, std::uint64_t& h) const noexcept {
    const std::uint64_t key = key_ + round * std::uint64_t{0xd1b54a32d192ed03};
    if (round % 2 == 0)
      h ^= mix(key + l) & low_bits(high_);
    else
      l ^= mix(key + h) & low_bits(low_);
  }
  const unsigned low_, high_;
  const std::uint64_t key_;
};

}  // namespace

std::uint64_t shuffle(std::uint64_t seed, std::uint64_t epoch, std::uint64_t count,
                      std::uint64_t i) noexcept {
  if (count < 2 || i >= count) return 0;
  const Network network(seed, epoch, count);
  do i = network.forward(i);
  while (i >= count);
  return i;
}

std::uint64_t unshuffle(std::uint64_t seed, std::uint64_t epoch, std::uint64_t count,
                        std::uint64_t x) noexcept {
  if (count < 2 || x >= count) return 0;
  const Network network(seed, epoch, count);
  do x = network.backward(x);
  while (x >= count);
  return x;
}

Result<Order> Order::make(const lmdbio_order& o, std::uint64_t records, const char** wrong, List list,
                          std::span<const std::uint64_t> firsts) noexcept {
  const auto invalid = [wrong](const char* what) {
    if (wrong != nullptr) *wrong = what;
    return Status::from_errno(EINVAL);
  };
  Order made;
  made.kind_ = o.kind;
  made.seed_ = o.seed;
  made.offset_ = o.offset;
  made.step_ = o.step == 0 ? 1 : o.step;
  made.block_ = o.block == 0 ? 1 : o.block;
  made.across_epochs_ = o.across_epochs != 0;
  made.all_ = records;
  if (made.offset_ >= made.step_) return invalid("offset: must be less than step");
  switch (o.kind) {
    case LMDBIO_ORDER_SEQUENTIAL:
    case LMDBIO_ORDER_SHUFFLE:
      break;
    case LMDBIO_ORDER_WINDOW_SHUFFLE:
      if (o.window == 0) return invalid("window: must be at least 1");
      made.window_ = o.window;
      break;
    case LMDBIO_ORDER_LIST:
      if (o.list == nullptr && o.length != 0) return invalid("list: must not be NULL");
      if (std::any_of(o.list, o.list + o.length, [records](std::uint64_t r) { return r >= records; }))
        return invalid("list: each ordinal must be less than the number of records");
      try {
        if (list == nullptr)
          list = std::make_shared<const std::vector<std::uint64_t>>(o.list, o.list + o.length);
      } catch (...) {
        return Status::from_errno(ENOMEM);
      }
      made.list_ = std::move(list);
      made.all_ = o.length;
      break;
    case LMDBIO_ORDER_KEYS:
      if (o.keys == nullptr && o.length != 0) return invalid("keys: must not be NULL");
      made.all_ = o.length;
      break;
    case LMDBIO_ORDER_FUNCTION:
      if (o.function == nullptr) return invalid("function: must not be NULL");
      made.function_ = o.function;
      made.context_ = o.function_context;
      made.all_ = o.length;
      break;
    case LMDBIO_ORDER_MIXED:
      if (o.length != 0) made.all_ = o.length;
      try {
        const std::uint64_t one[] = {0, records};
        auto mixture = std::make_shared<Mixture>();
        if (const char* const bad = mix_sources(o, firsts.empty() ? one : firsts, *mixture); bad != nullptr)
          return invalid(bad);
        made.mixture_ = std::move(mixture);
      } catch (const std::bad_alloc&) {
        return Status::from_errno(ENOMEM);
      }
      break;
    default:
      return invalid("kind: unknown order");
  }
  made.length_ = static_cast<std::uint64_t>(made.chosen(made.all_));
  if (o.position > made.length(o.epoch)) return invalid("position: beyond the end of the epoch");
  if (static_cast<unsigned>(o.across_epochs) > 1) return invalid("across_epochs: must be 0 or 1");
  if (static_cast<unsigned>(o.zero_copy) > 1) return invalid("zero_copy: must be 0 or 1");
  if (static_cast<unsigned>(o.last) > LMDBIO_LAST_PAD) return invalid("last: unknown value");
  return made;
}

// Divides the slots of a block by the weights (largest remainder).  Returns null, or what is wrong.  The
// division is defined in docs/format.md, and must never change.
const char* Order::mix_sources(const lmdbio_order& o, std::span<const std::uint64_t> firsts, Mixture& out) {
  const std::size_t n = firsts.size() - 1;
  if (o.weights == nullptr || o.weights_count != n) return "weights: there must be one for each database";
  double sum = 0;
  for (std::size_t d = 0; d < n; ++d) {
    if (!(o.weights[d] >= 0) || !std::isfinite(o.weights[d])) return "weights: must be finite and at least 0";
    if (o.weights[d] > 0 && firsts[d + 1] == firsts[d])
      return "weights: must be 0 for a database without records";
    sum += o.weights[d];
  }
  if (!(sum > 0) || !std::isfinite(sum)) return "weights: their sum must be finite and more than 0";
  constexpr std::uint64_t kSlotsPerDatabase = 1024;
  out.block = kSlotsPerDatabase * std::bit_ceil(std::uint64_t{n});
  std::vector<std::uint64_t> slots(n);
  std::vector<double> rest(n);
  std::vector<std::size_t> by_rest(n);
  std::uint64_t left = out.block;
  for (std::size_t d = 0; d < n; ++d) {
    const double exact = o.weights[d] * static_cast<double>(out.block) / sum;
    slots[d] = std::min(static_cast<std::uint64_t>(exact), left);
    rest[d] = exact - static_cast<double>(slots[d]);
    left -= slots[d];
    by_rest[d] = d;
  }
  std::stable_sort(by_rest.begin(), by_rest.end(),
                   [&](std::size_t a, std::size_t b) { return rest[a] > rest[b]; });
  for (std::size_t i = 0; left != 0; i = (i + 1) % n)
    if (o.weights[by_rest[i]] > 0) {
      ++slots[by_rest[i]];
      --left;
    }
  std::uint64_t slot = 0;
  for (std::size_t d = 0; d < n; ++d) {
    if (o.weights[d] > 0 && slots[d] == 0) return "weights: one is too small, compared with their sum";
    if (slots[d] == 0) continue;
    out.sources.push_back({firsts[d], firsts[d + 1] - firsts[d], o.seed ^ mix(d), slot, slots[d]});
    slot += slots[d];
  }
  return nullptr;
}

// Returns the ordinal of element `i` of an epoch, as docs/format.md defines it.
std::uint64_t Order::mixed(std::uint64_t epoch, std::uint64_t i) const noexcept {
  const Mixture& m = *mixture_;
  const std::uint64_t number = epoch * all_ + i;  // modulo 2^64
  const std::uint64_t block = number / m.block, slot = shuffle(seed_, block, m.block, number % m.block);
  const Source& s =
      *std::prev(std::upper_bound(m.sources.begin(), m.sources.end(), slot,
                                  [](std::uint64_t x, const Source& y) { return x < y.first_slot; }));
  const std::uint64_t taken = block * s.slots + (slot - s.first_slot);
  return s.first + shuffle(s.seed, taken / s.records, s.records, taken % s.records);
}

Order::Wide Order::chosen(Wide elements) const noexcept {
  const Wide cycle = Wide{step_} * block_, before_first = Wide{offset_} * block_;
  const Wide rest = elements % cycle;
  const Wide of_rest = rest > before_first ? std::min<Wide>(rest - before_first, block_) : 0;
  return elements / cycle * block_ + of_rest;
}

std::uint64_t Order::length(std::uint64_t epoch) const noexcept {
  if (!across_epochs_) return length_;
  return static_cast<std::uint64_t>(before(Wide{epoch} + 1) - before(epoch));
}

Position Order::element(std::uint64_t epoch, std::uint64_t position) const noexcept {
  const auto ith = [this](Wide i) { return (i / block_ * step_ + offset_) * block_ + i % block_; };
  if (!across_epochs_)
    return {epoch, block_ == 1 ? offset_ + position * step_ : static_cast<std::uint64_t>(ith(position))};
  const Wide i = ith(before(epoch) + position);
  return {static_cast<std::uint64_t>(i / all_), static_cast<std::uint64_t>(i % all_)};
}

Position Order::normal(Position p) const noexcept {
  const std::uint64_t epoch = element(p.epoch, p.position).epoch;
  return {epoch, static_cast<std::uint64_t>(before(p.epoch) + p.position - before(epoch))};
}

std::optional<std::uint64_t> Order::element_of(std::uint64_t epoch, std::uint64_t ordinal) const noexcept {
  switch (kind_) {
    case LMDBIO_ORDER_SHUFFLE:
      return unshuffle(seed_, epoch, all_, ordinal);
    case LMDBIO_ORDER_WINDOW_SHUFFLE: {
      const std::uint64_t w = ordinal / window_, first = w * window_;
      return first + unshuffle(seed_ ^ mix(w), epoch, std::min(window_, all_ - first), ordinal - first);
    }
    case LMDBIO_ORDER_LIST:
    case LMDBIO_ORDER_KEYS:
    case LMDBIO_ORDER_FUNCTION:
    case LMDBIO_ORDER_MIXED:
      return {};
    case LMDBIO_ORDER_SEQUENTIAL:
      break;
  }
  return ordinal;
}

std::optional<Position> Order::position_of(std::uint64_t epoch, std::uint64_t element) const noexcept {
  const Wide i = (across_epochs_ ? Wide{epoch} * all_ : 0) + element;
  if (i / block_ % step_ != offset_) return {};
  const Wide position = chosen(i) - (across_epochs_ ? before(epoch) : 0);
  return Position{epoch, static_cast<std::uint64_t>(position)};
}

std::optional<std::uint64_t> Order::distance(Position from, Position to) const noexcept {
  const Wide a = before(from.epoch) + from.position, b = before(to.epoch) + to.position;
  if (b < a) return {};
  return static_cast<std::uint64_t>(std::min<Wide>(b - a, UINT64_MAX));
}

std::uint64_t Order::positions_below(std::uint64_t epoch, std::uint64_t elements) const noexcept {
  if (!across_epochs_) return static_cast<std::uint64_t>(chosen(elements));
  return static_cast<std::uint64_t>(chosen(Wide{epoch} * all_ + elements) - before(epoch));
}

std::uint64_t Order::left(Position p, std::uint64_t last) const noexcept {
  const Wide end = before(Wide{last} + 1), at = before(p.epoch) + p.position;
  if (end <= at) return 0;
  return static_cast<std::uint64_t>(std::min<Wide>(end - at, UINT64_MAX));
}

std::uint64_t Order::at(std::uint64_t in_epoch, std::uint64_t position) const noexcept {
  const Position e = element(in_epoch, position);
  return record(e.epoch, e.position);
}

std::uint64_t Order::record(std::uint64_t epoch, std::uint64_t i) const noexcept {
  switch (kind_) {
    case LMDBIO_ORDER_SHUFFLE:
      return shuffle(seed_, epoch, all_, i);
    case LMDBIO_ORDER_WINDOW_SHUFFLE: {
      const std::uint64_t w = i / window_, first = w * window_;
      return first + shuffle(seed_ ^ mix(w), epoch, std::min(window_, all_ - first), i - first);
    }
    case LMDBIO_ORDER_LIST:
      return (*list_)[i];
    case LMDBIO_ORDER_FUNCTION:
      return std::min(function_(context_, epoch, i), UINT64_MAX - 1);  // UINT64_MAX marks an absent key
    case LMDBIO_ORDER_MIXED:
      return mixed(epoch, i);
    case LMDBIO_ORDER_SEQUENTIAL:
    case LMDBIO_ORDER_KEYS:
      break;
  }
  return i;
}

bool Order::in_order() const noexcept {
  constexpr std::uint64_t kNear = 4;
  return kind_ == LMDBIO_ORDER_SEQUENTIAL && (step_ <= kNear || block_ >= kNear);
}

}  // namespace lmdbio::records
