#include "lmdbio/ranks/assignment.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace lmdbio::ranks {

using records::Order;
using records::Position;

namespace {

__extension__ using Wide = unsigned __int128;

/// If a window of a windowed shuffle is at most this many times a normal round, rounds consist of whole
/// windows.  With larger windows, the order is a scattered one, because a whole round must fit into memory.
constexpr std::uint64_t kMostRounds = 4;
/// In scattered orders, each reader gets at least this many owner blocks, so that all readers read about the
/// same amount.
constexpr std::uint64_t kLeastOwnerBlocks = 16;
/// Maximum number of elements of an epoch that has rounds.  The limit prevents overflows of round numbers.
constexpr std::uint64_t kMostElements = std::uint64_t{1} << 44;

/// Returns how many consecutive elements of the order a rank uses.
std::uint64_t block_of(const Job& job) noexcept {
  return job.distribution == Distribution::contiguous ? std::max<std::uint64_t>(job.order.batch, 1) : 1;
}

lmdbio_order share_of(const Job& job, std::uint32_t rank) noexcept {
  lmdbio_order o = job.order;
  o.size = sizeof o;
  o.offset = rank;
  o.step = job.ranks;
  o.block = block_of(job);
  return o;
}

}  // namespace

// Sets kept_rounds_.  Requires round_records_.
void Assignment::keep_rounds() noexcept {
  if (!share_.repeats()) return;
  const unsigned parts = std::min(job_.kept_parts, kKeptParts);
  kept_rounds_ = static_cast<std::uint64_t>(Wide{rounds_per_epoch()} * parts / kKeptParts);
}

std::vector<std::uint32_t> choose_readers(std::span<const std::uint32_t> nodes, unsigned per_node) {
  std::vector<unsigned> of_node(nodes.size());
  std::vector<std::uint32_t> readers;
  for (std::uint32_t rank = 0; rank < nodes.size(); ++rank) {
    if (of_node[nodes[rank]] >= std::max(per_node, 1U)) continue;
    ++of_node[nodes[rank]];
    readers.push_back(rank);
  }
  return readers;
}

Result<Assignment> Assignment::make(const Job& job, std::uint64_t records, const char** wrong) noexcept {
  const auto invalid = [wrong](const char* what) {
    if (wrong != nullptr) *wrong = what;
    return Status::from_errno(EINVAL);
  };
  const lmdbio_order& o = job.order;
  if (job.ranks == 0) return invalid("ranks: there has to be one");
  if (job.readers == 0 || job.readers > job.ranks) return invalid("readers: from 1 to the number of ranks");
  if (job.starts != nullptr && job.starts->size() != job.ranks) return invalid("starts: one for each rank");
  if (job.round_records == 0) return invalid("round_records: it has to be 1 or more");
  if (o.offset != 0 || o.step > 1 || o.block > 1)
    return invalid("offset, step, block: the order must be that of the whole job");
  lmdbio_order whole = o;
  whole.epoch = whole.position = 0;
  Result<Order> all = Order::make(whole, records, wrong, job.list);
  if (!all) return all.error();
  lmdbio_order first = share_of(job, 0);
  if (job.starts != nullptr) first.epoch = first.position = 0;
  Result<Order> share = Order::make(first, records, wrong, all.value().list());
  if (!share) return share.error();
  Assignment made(job, records, std::move(all).value(), std::move(share).value());
  made.first_epoch_ = made.start_of(0).epoch;
  for (std::uint32_t rank = 0; rank < job.ranks; ++rank) {
    const Position start = made.start_of(rank);
    if (start.position > made.order_of(rank).length(start.epoch))
      return invalid("position: it is beyond the end of an epoch");
    made.first_epoch_ = std::min(made.first_epoch_, start.epoch);
  }
  made.job_.order.end_epoch = records::end_epoch(o);  // the default depends on `epoch`, which shares change
  made.job_.order.list = nullptr;
  made.job_.order.keys = nullptr;
  const std::uint64_t elements = made.whole_.elements();
  if (o.kind == LMDBIO_ORDER_KEYS || elements == 0 || elements > kMostElements || records == 0) return made;
  std::uint64_t n = std::min(job.round_records, elements);
  const bool windows = o.kind == LMDBIO_ORDER_WINDOW_SHUFFLE;
  if (windows) {
    const std::uint64_t window = std::min(o.window, elements);
    if (window / kMostRounds <= n) {
      made.round_records_ = std::max<std::uint64_t>(n / window, 1) * window;
      made.keep_rounds();
      return made;
    }
  }
  if (o.kind != LMDBIO_ORDER_SEQUENTIAL) {
    if (job.scattered_records == 0) return made;
    n = std::min(job.scattered_records, elements);
    made.owner_block_records_ = std::clamp<std::uint64_t>(records / job.readers / kLeastOwnerBlocks, 1,
                                                          std::max<std::uint64_t>(n / job.readers, 1));
  }
  made.round_records_ = n;
  made.keep_rounds();
  return made;
}

std::uint64_t Assignment::last_epoch() const noexcept {
  return job_.order.end_epoch == LMDBIO_ENDLESS ? UINT64_MAX : job_.order.end_epoch - 1;
}

std::uint64_t Assignment::next_sent(std::uint64_t round) const noexcept {
  const std::uint64_t epoch = epoch_of(round);
  std::uint64_t next = UINT64_MAX;  // next epoch in which the first rounds are sent
  if (kept_rounds_ == 0) next = epoch;
  for (std::uint32_t rank = 0; rank < job_.ranks && next != epoch; ++rank) {
    const std::uint64_t start = start_of(rank).epoch;
    if (start >= epoch)
      next = std::min(next, start);
    else if (!was_sent(rank, first_round(epoch)))
      next = epoch;
  }
  if (next != epoch && kept_rounds_ != rounds_per_epoch())
    return epoch > last_epoch() ? UINT64_MAX : first_round(epoch) + kept_rounds_;
  return next > last_epoch() ? UINT64_MAX : first_round(next);
}

std::uint64_t Assignment::owner_blocks(std::uint32_t reader) const noexcept {
  const std::uint64_t all = (records_ - 1) / owner_block_records_ + 1;
  return all > reader ? (all - reader - 1) / job_.readers + 1 : 0;
}

Range Assignment::owner_block(std::uint32_t reader, std::uint64_t i) const noexcept {
  const std::uint64_t begin = (i * job_.readers + reader) * owner_block_records_;
  return {begin, std::min(begin + owner_block_records_, records_)};
}

std::uint64_t Assignment::most_positions() const noexcept {
  const Wide block = block_of(job_);
  return static_cast<std::uint64_t>(
      std::min<Wide>((round_records_ / (block * job_.ranks) + 2) * block, round_records_));
}

lmdbio_order Assignment::share(std::uint32_t rank) const {
  lmdbio_order o = share_of(job_, rank);
  const Position start = start_of(rank);
  o.epoch = start.epoch;
  o.position = start.position;
  return o;
}

Range Assignment::elements(std::uint64_t round) const noexcept {
  const std::uint64_t first = round % rounds_per_epoch() * round_records_;
  return {first, first + std::min(round_records_, whole_.elements() - first)};
}

Range Assignment::part(std::uint64_t round, std::uint32_t part) const noexcept {
  const Range all = elements(round);
  const auto cut = [&](std::uint64_t i) {
    return all.begin + static_cast<std::uint64_t>(Wide{all.size()} * i / job_.readers);
  };
  return {cut(part), cut(std::uint64_t{part} + 1)};
}

// Unless the order is scattered, returns the only part that begins at or before the ordinal and ends after
// it.
std::uint32_t Assignment::part_of(std::uint64_t round, std::uint64_t ordinal) const noexcept {
  if (is_scattered()) return static_cast<std::uint32_t>(ordinal / owner_block_records_ % job_.readers);
  const Range all = elements(round);
  const Wide i = ordinal - all.begin;
  return static_cast<std::uint32_t>(((i + 1) * job_.readers - 1) / all.size());
}

bool Assignment::is_needed(std::uint32_t rank, const Order& share, Position at) const noexcept {
  const lmdbio_order& o = job_.order;
  const std::uint64_t batch = std::max<std::uint64_t>(o.batch, 1);
  const std::uint64_t last = last_epoch();
  const Position start = start_of(rank);
  if (at.epoch < start.epoch || at.epoch > last) return false;
  std::uint64_t i, all;  // index of the record and number of records, in the whole stream or in the epoch
  if (share.across_epochs()) {
    const auto distance = share.distance(start, at);
    if (!distance) return false;
    i = *distance;
    all = share.left(start, last);
  } else {
    const std::uint64_t from = at.epoch == start.epoch ? start.position : 0;
    if (at.position < from) return false;
    i = at.position - from;
    all = share.length() - from;
  }
  return i < (o.last == LMDBIO_LAST_DROP && all != UINT64_MAX ? all / batch * batch : all);
}

void Assignment::need(std::uint64_t round, std::uint64_t element, std::uint64_t ordinal, Order& share,
                      std::vector<Need>& out) const {
  const std::uint64_t epoch = epoch_of(round);
  const Wide i = (whole_.across_epochs() ? Wide{epoch} * whole_.elements() : 0) + element;
  const auto rank = static_cast<std::uint32_t>(i / block_of(job_) % job_.ranks);
  share.set_offset(rank);
  if (!was_sent(rank, round) && is_needed(rank, share, *share.position_of(epoch, element)))
    out.push_back({ordinal, rank});
}

void Assignment::needs(std::uint64_t round, std::uint32_t part_number, std::vector<Need>& out) const {
  out.clear();
  const std::uint64_t epoch = epoch_of(round);
  Order share = share_;
  if (!is_scattered()) {
    const Range part = this->part(round, part_number);
    out.reserve(static_cast<std::size_t>(part.size()));
    for (std::uint64_t ordinal = part.begin; ordinal < part.end; ++ordinal)
      need(round, *whole_.element_of(epoch, ordinal), ordinal, share, out);
    return;
  }
  const Range all = elements(round);
  if (has_all_records() && records_ / job_.readers < all.size()) {  // the blocks have fewer records
    for (std::uint64_t i = 0, blocks = owner_blocks(part_number); i < blocks; ++i) {
      const Range block = owner_block(part_number, i);
      for (std::uint64_t ordinal = block.begin; ordinal < block.end; ++ordinal)
        if (const std::uint64_t element = *whole_.element_of(epoch, ordinal);
            element >= all.begin && element < all.end)
          need(round, element, ordinal, share, out);
    }
    return;
  }
  for (std::uint64_t element = all.begin; element < all.end; ++element) {
    const std::uint64_t ordinal = whole_.record(epoch, element);
    if (is_record(ordinal) && part_of(round, ordinal) == part_number)
      need(round, element, ordinal, share, out);
  }
  std::sort(out.begin(), out.end(), [](const Need& a, const Need& b) { return a.ordinal < b.ordinal; });
}

Range Assignment::positions(std::uint32_t rank, std::uint64_t round) const {
  const Order share = order_of(rank);
  const std::uint64_t epoch = epoch_of(round);
  const Range all = elements(round);
  return {share.positions_below(epoch, all.begin), share.positions_below(epoch, all.end)};
}

}  // namespace lmdbio::ranks
