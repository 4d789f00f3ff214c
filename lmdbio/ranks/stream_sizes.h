// Computes the size of a stream's rounds, the part of its share that a rank keeps, and its vote.  Pure
// functions.
#pragma once

#include <lmdbio/lmdbio.h>

#include <cstdint>

#include "lmdbio/records/order.h"

namespace lmdbio::ranks {

/// Number of rounds that are read, sent and received ahead.
inline constexpr unsigned kRoundsAhead = 3;

/// Returns the bytes of the part of a round that one reader reads.  `offer`: bytes that the streams of each
/// rank may use.
std::uint64_t part_bytes(std::uint64_t offer) noexcept;
/// Returns the number of records in a round, for all readers together.  `record_bytes`: bytes of a record and
/// of its part of the pages.
std::uint64_t round_records(std::uint64_t offer, std::uint64_t record_bytes, std::size_t readers) noexcept;
/// Returns the bytes that are read for one record of a scattered order, at least a page.
std::uint64_t scattered_bytes(std::uint64_t record_bytes) noexcept;
/// Returns whether the order itself gives the number of elements of an epoch.  Otherwise an epoch has all
/// records.
inline bool has_length(const lmdbio_order& o) noexcept {
  return o.kind == LMDBIO_ORDER_LIST || o.kind == LMDBIO_ORDER_FUNCTION;
}

/// The facts that a rank knows when it opens a stream.  Sizes are in bytes.
struct StreamFacts {
  lmdbio_order share{};
  records::Order::List list;                    ///< list of the order
  std::uint64_t records = 0, record_bytes = 1;  ///< record_bytes: bytes of a record and its part of the pages
  std::uint32_t nodes = 1, readers = 1;
  std::uint64_t ranks_here = 1;    ///< number of ranks on this node
  std::uint64_t offer = 0;         ///< memory that this rank's streams may use
  std::uint64_t for_messages = 0;  ///< part of `offer`
  std::uint64_t memory = 0;        ///< memory limit of all readers of the process
  std::uint64_t available = 0;     ///< free memory of the node
  bool caches = false;             ///< reads go through the page cache
};

/// Returns whether the ranks should read for each other if the order is scattered (plan.h).
bool votes_to_exchange(const StreamFacts& facts) noexcept;
/// The part of its share that a rank keeps.
struct Keeping {
  unsigned parts = 0;       ///< kept rounds, in kKeptParts-ths of all rounds
  std::uint64_t bytes = 0;  ///< memory that is reserved for all these parts
  std::uint64_t of(unsigned less) const noexcept { return parts != 0 ? bytes / parts * less : 0; }
};
/// Computes the part of its share that a rank keeps.  This is nothing if the share differs between epochs, if
/// there is only one epoch, or if memory is short.  `set_aside`: bytes that are reserved for other streams.
Keeping what_to_keep(const StreamFacts& facts, std::uint64_t set_aside) noexcept;
/// Returns whether a rank whose records are in the page cache reads them there in each epoch.  If not, it
/// copies the part `keeping` in the first epoch: for small records, this costs less than finding them again.
bool reads_in_place(const StreamFacts& facts, const Keeping& keeping) noexcept;

}  // namespace lmdbio::ranks
