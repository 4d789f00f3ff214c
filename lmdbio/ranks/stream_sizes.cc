#include "lmdbio/ranks/stream_sizes.h"

#include <algorithm>

#include "lmdbio/io/read_path.h"
#include "lmdbio/ranks/assignment.h"
#include "lmdbio/ranks/plan.h"
#include "lmdbio/ranks/receiver.h"

namespace lmdbio::ranks {

namespace {

/// Bytes of the part of a round that one reader reads.  They allow large requests, as far as memory permits.
constexpr std::uint64_t kPartBytes = std::uint64_t{4} << 20, kLeastPartBytes = std::uint64_t{64} << 10;
/// Number of parts that a rank may have in memory at a time, for kRoundsAhead rounds that are read, packed
/// and received.
constexpr std::uint64_t kPartsInMemory = 5 * kRoundsAhead;
/// Number of parts that must fit into the memory for messages, besides the records that are kept.
constexpr std::uint64_t kPartsOnTheirWay = 8;
/// Upper limit for the bytes of a share, relative to the estimate from the average record size.
constexpr double kMoreThanEstimated = 8.0 / 7;
/// If a share has at least this many bytes, nothing is kept: no rank has memory for any part of it.
constexpr double kMostKept = 1e18;
constexpr std::uint64_t kPageBytes = 4096;
/// From this size on, it takes longer to copy a record that is in the page cache than to find it in a few
/// epochs (docs/decisions/0058).
constexpr std::uint64_t kFoundBytes = 1024;
/// Bytes that a rank reads at a time if it reads for itself (records/stream.cc).
constexpr std::uint64_t kFetchBytes = std::uint64_t{4} << 20;

}  // namespace

std::uint64_t part_bytes(std::uint64_t offer) noexcept {
  return std::clamp(offer / kPartsInMemory, kLeastPartBytes, kPartBytes);
}

std::uint64_t round_records(std::uint64_t offer, std::uint64_t record_bytes, std::size_t readers) noexcept {
  return std::max<std::uint64_t>(part_bytes(offer) / record_bytes, 1) * readers;
}

std::uint64_t scattered_bytes(std::uint64_t record_bytes) noexcept {
  return std::max(record_bytes, kPageBytes);
}

bool votes_to_exchange(const StreamFacts& f) noexcept {
  ScatterFacts facts;
  facts.records = f.records;
  facts.record_bytes = f.record_bytes;
  facts.elements = has_length(f.share) ? f.share.length : f.records;
  facts.epochs = records::epochs_to_read(f.share);  // 0 if no epochs are left, which favours the exchange
  facts.round_records = round_records(f.offer, scattered_bytes(f.record_bytes), f.readers);
  facts.fetch_records = kFetchBytes / f.record_bytes;
  facts.nodes = f.nodes;
  facts.readers = f.readers;
  if (f.caches) facts.room = room_in_page_cache(f.available);
  return exchanges_scattered(facts);
}

Keeping what_to_keep(const StreamFacts& f, std::uint64_t set_aside) noexcept {
  const Result<records::Order> share = records::Order::make(f.share, f.records, nullptr, f.list);
  if (!share || !share.value().repeats() || records::epochs_to_read(f.share) <= 1) return {};
  const auto records = static_cast<double>(share.value().length(f.share.epoch));
  const double bytes =
      records * static_cast<double>(f.record_bytes + Receiver::kBytesPerEntry) * kMoreThanEstimated;
  const std::uint64_t moving = kPartsOnTheirWay * part_bytes(f.offer);
  const std::uint64_t kept = f.for_messages > moving ? f.for_messages - moving : 0;
  const std::uint64_t most = std::min({kept, f.memory / 2, f.available / 2 / f.ranks_here});
  if (most <= set_aside || bytes >= kMostKept) return {};
  const std::uint64_t part = static_cast<std::uint64_t>(bytes / kKeptParts) + 1;
  Keeping keeping;
  keeping.parts = static_cast<unsigned>(std::min<std::uint64_t>((most - set_aside) / part, kKeptParts));
  keeping.bytes = part * keeping.parts;
  return keeping;
}

bool reads_in_place(const StreamFacts& f, const Keeping& keeping) noexcept {
  return keeping.parts == 0 || f.record_bytes >= kFoundBytes;
}

}  // namespace lmdbio::ranks
