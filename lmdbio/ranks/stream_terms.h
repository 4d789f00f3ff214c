// What a rank claims when it opens a stream (Terms of the agreement).
#pragma once

#include <lmdbio/lmdbio.h>

#include <cstdint>

#include "lmdbio/ranks/agreement.h"
#include "lmdbio/records/reader.h"

namespace lmdbio::ranks {

/// The order of all ranks of which `share` is that of one.
lmdbio_order whole_order(const lmdbio_order& share) noexcept;

/// The same number for equal orders, but for where they begin.  `reader`: number of the reader; `records`: of
/// its database.
FileState state_of(const lmdbio_order& share, std::uint32_t reader, std::uint64_t records) noexcept;

/// What is done if no rank is against it.
struct Votes {
  bool deals_scattered = false;  ///< the ranks read for each other, though the order is scattered
  bool reads_alone = false;      ///< each rank has the records in the page cache of its node
  unsigned kept_parts = 0;       ///< see Job; that of the rank that has least is done
};
/// As bits, of which those stay that all ranks have set (Terms::votes).
std::uint32_t votes_of(const Votes& votes) noexcept;
Votes votes_in(std::uint32_t bits) noexcept;

/// The records of a share are in the page cache of this node, as far as can be told from some of them (of a
/// function: from some of the database).  False if LMDBIO_IO says how to read, or nothing tells.  It has to
/// be known where records are.  `list`: of the share.
bool has_in_page_cache(const records::Reader& reader, const lmdbio_order& share,
                       records::Order::List list) noexcept;

}  // namespace lmdbio::ranks
