// What a rank claims when it opens a stream (Terms of the agreement).
#pragma once

#include <lmdbio/lmdbio.h>

#include <cstdint>

#include "lmdbio/ranks/agreement.h"
#include "lmdbio/records/reader.h"

namespace lmdbio::ranks {

/// Returns the order of all ranks; `share` is the order of one of them.
lmdbio_order whole_order(const lmdbio_order& share) noexcept;

/// Returns the same state for equal orders, wherever they begin.  Functions are not compared.  `reader`:
/// number of the reader.  `records`: of its database.
FileState state_of(const lmdbio_order& share, std::uint32_t reader, std::uint64_t records) noexcept;

/// What a rank agrees to.  Something is done only if all ranks agree.
struct Votes {
  bool exchanges_scattered = false;  ///< the ranks read for each other, even though the order is scattered
  bool reads_alone = false;          ///< each rank's records are in the page cache of its node
  unsigned kept_parts = 0;           ///< see Job; the ranks agree on the smallest number
};
/// Votes as bits: the ranks agree on the bits that all of them have set (Terms::votes).
std::uint32_t votes_of(const Votes& votes) noexcept;
Votes votes_in(std::uint32_t bits) noexcept;

/// Returns whether the records of a share are in the page cache of this node.  Estimates it from a sample of
/// the records; for a function, from a sample of all records of the database.  Returns false if LMDBIO_IO
/// prescribes how to read, or if residency cannot be determined.  The reader's index must be complete.
/// `list`: of the share.
bool has_in_page_cache(const records::Reader& reader, const lmdbio_order& share,
                       records::Order::List list) noexcept;

}  // namespace lmdbio::ranks
