// Computes the claim of a rank that opens a stream (Terms of the agreement).
#pragma once

#include <lmdbio/lmdbio.h>

#include <cstdint>

#include "lmdbio/ranks/agreement.h"
#include "lmdbio/records/reader.h"

namespace lmdbio::ranks {

/// Returns the order of all ranks; `share` is the order of one of them.
lmdbio_order whole_order(const lmdbio_order& share) noexcept;

/// Returns a state that is the same for equal orders, even if they begin at different positions.  Does not
/// compare functions.  `reader`: number of the reader.  `records`: number of records of its database.
FileState state_of(const lmdbio_order& share, std::uint32_t reader, std::uint64_t records) noexcept;

/// The votes of a rank.  The ranks do something only if all of them vote for it.
struct Votes {
  bool exchanges_scattered = false;  ///< the ranks read for each other, even though the order is scattered
  bool reads_alone = false;          ///< each rank's records are in the page cache of its node
  unsigned kept_parts = 0;           ///< see Job; the result is the smallest number of all ranks
};
/// Convert votes to bits (Terms::votes), and bits to votes.  The result of the agreement is the bitwise AND
/// of all ranks' bits.
std::uint32_t votes_of(const Votes& votes) noexcept;
Votes votes_in(std::uint32_t bits) noexcept;

/// Returns whether the records of a share are in the page cache of this node.  Estimates this from a sample
/// of the share's records.  If the order is a function, uses a sample of all records of the database.
/// Returns false if LMDBIO_IO prescribes how to read, or if residency cannot be determined.  The reader's
/// index must be complete.  `list`: list of the share.
bool has_in_page_cache(const records::Reader& reader, const lmdbio_order& share,
                       records::Order::List list) noexcept;

}  // namespace lmdbio::ranks
