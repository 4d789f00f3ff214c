// How large the rounds of a stream are, what a rank may keep of its share, and how it votes: pure functions.
#pragma once

#include <lmdbio/lmdbio.h>

#include <cstdint>

#include "lmdbio/records/order.h"

namespace lmdbio::ranks {

/// Rounds that are read, sent and received ahead.
inline constexpr unsigned kRoundsAhead = 3;

/// What one reader reads of a round, bytes, if each rank's streams may have `offer` bytes.
std::uint64_t part_bytes(std::uint64_t offer) noexcept;
/// Of a round of all readers.  `record_bytes`: of one, with its share of the pages.
std::uint64_t round_records(std::uint64_t offer, std::uint64_t record_bytes, std::size_t readers) noexcept;
/// Of a record of a scattered order, whose pages have nothing else that is read with it.
std::uint64_t scattered_bytes(std::uint64_t record_bytes) noexcept;
/// The order says how many elements an epoch has; else it has all records.
inline bool has_length(const lmdbio_order& o) noexcept {
  return o.kind == LMDBIO_ORDER_LIST || o.kind == LMDBIO_ORDER_FUNCTION;
}

/// What a rank knows when it opens a stream.  Bytes.
struct StreamFacts {
  lmdbio_order share{};
  records::Order::List list;                    ///< of the order
  std::uint64_t records = 0, record_bytes = 1;  ///< of one, with its share of the pages
  std::uint32_t nodes = 1, readers = 1;
  std::uint64_t ranks_here = 1;    ///< on this node
  std::uint64_t offer = 0;         ///< that this rank's streams may have
  std::uint64_t for_messages = 0;  ///< of it
  std::uint64_t memory = 0;        ///< of all readers of the process
  std::uint64_t available = 0;     ///< free on the node
  bool caches = false;             ///< reads go through the page cache
};

/// The ranks are to read for each other, if the order is scattered (plan.h).
bool votes_to_deal(const StreamFacts& facts) noexcept;
/// What a rank keeps of its share.
struct Keeping {
  unsigned parts = 0;       ///< of kKeptParts
  std::uint64_t bytes = 0;  ///< that it sets aside for all of them
  std::uint64_t of(unsigned less) const noexcept { return parts != 0 ? bytes / parts * less : 0; }
};
/// None: the share is not the same in each epoch, or there is no memory.  `set_aside`: for other streams.
Keeping what_to_keep(const StreamFacts& facts, std::uint64_t set_aside) noexcept;

}  // namespace lmdbio::ranks
