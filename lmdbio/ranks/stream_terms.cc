#include "lmdbio/ranks/stream_terms.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "lmdbio/base/config.h"
#include "lmdbio/base/mix.h"
#include "lmdbio/ranks/assignment.h"
#include "lmdbio/ranks/stream_sizes.h"

namespace lmdbio::ranks {

namespace {

/// Number of records in the sample for has_in_page_cache().
constexpr std::uint64_t kSamples = 64;

constexpr std::uint32_t kExchangeScattered = 1, kReadAlone = 2;
/// From this bit on, the votes contain the number of kept parts in unary form.  The bitwise AND of all votes
/// therefore contains the smallest number.
constexpr unsigned kAtKeptParts = 8;
static_assert(kAtKeptParts + kKeptParts < 32);
constexpr std::uint32_t bits_of_parts(unsigned parts) noexcept { return ((1u << parts) - 1) << kAtKeptParts; }

}  // namespace

lmdbio_order whole_order(const lmdbio_order& share) noexcept {
  lmdbio_order whole = share;
  whole.offset = 0;
  whole.step = 0;
  whole.block = 0;
  return whole;
}

FileState state_of(const lmdbio_order& share, std::uint32_t reader, std::uint64_t records) noexcept {
  const lmdbio_order o = whole_order(share);
  FileState s;
  s.size = records;
  s.txnid = reader;
  std::uint64_t h = 1;
  for (const std::uint64_t field :
       {std::uint64_t{o.kind}, std::uint64_t{o.last}, std::max<std::uint64_t>(o.batch, 1), o.seed, o.window,
        records::end_epoch(o), std::uint64_t{o.across_epochs != 0}, std::max<std::uint64_t>(share.block, 1),
        share.step, has_length(o) ? o.length : 0})
    h = mix(h ^ field);
  if (o.kind == LMDBIO_ORDER_LIST)
    for (std::size_t i = 0; i < o.length; ++i) h = mix(h ^ o.list[i]);
  s.metas[0] = h;
  return s;
}

std::uint32_t votes_of(const Votes& votes) noexcept {
  return (votes.exchanges_scattered ? kExchangeScattered : 0) | (votes.reads_alone ? kReadAlone : 0) |
         bits_of_parts(std::min(votes.kept_parts, kKeptParts));
}

Votes votes_in(std::uint32_t bits) noexcept {
  return {(bits & kExchangeScattered) != 0, (bits & kReadAlone) != 0,
          static_cast<unsigned>(std::popcount(bits & bits_of_parts(kKeptParts)))};
}

bool has_in_page_cache(const records::Reader& reader, const lmdbio_order& share,
                       records::Order::List list) noexcept {
  const records::RecordLocations& locations = reader.locations();
  const records::Shared& shared = *reader.keep_shared();
  if (!ranks_use_resident(config().io, shared.read) || shared.residency.samples()) return false;
  const std::uint64_t records = locations.records();
  const Result<records::Order> order = records::Order::make(share, records, nullptr, std::move(list));
  if (!order) return false;
  const bool whole = share.kind == LMDBIO_ORDER_FUNCTION;  // the sample needs no call of the function
  const std::uint64_t all = whole ? records : order.value().length(share.epoch);
  const std::uint64_t samples = std::min(all, kSamples);
  std::uint64_t bytes = 0;
  double there = 0;
  for (std::uint64_t i = 0; i < samples; ++i) {
    const std::uint64_t at = all / samples * i + all / samples / 2;
    const std::uint64_t ordinal = whole ? at : order.value().at(share.epoch, at);
    if (ordinal >= records) return false;
    records::RecordLocation location;
    locations.locations(ordinal, {&location, 1});
    const std::uint64_t page = location.overflow != 0 ? location.overflow : location.leaf;
    const std::uint64_t size = location.overflow != 0 ? format::page_header(shared.source.version) +
                                                            std::uint64_t{location.value_bytes}
                                                      : shared.source.page_size;
    bytes += size;
    there += shared.residency.share(shared.offset(page), size).value_or(0) * static_cast<double>(size);
  }
  return there >= kMostlyResident * static_cast<double>(bytes);
}

}  // namespace lmdbio::ranks
