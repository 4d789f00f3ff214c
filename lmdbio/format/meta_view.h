// Checks and copies meta pages, which describe their file.
#pragma once

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/result.h"
#include "lmdbio/format/layout.h"

namespace lmdbio::format {

enum class MetaKind : unsigned char {
  good,
  other,          ///< not a meta page of this format, version, byte order and word size
  bad_page_size,  ///< a meta page whose page size is not a power of two from kMinPageSize to kMaxPageSize
};

/// Checks the meta page at the start of `page`.  Returns MetaKind::other for fewer than kMetaBytes bytes.
MetaKind judge_meta(Bytes page) noexcept;

/// Returns a copy of the meta page at the start of `page`.  Errors: MDB_INVALID if this is not an LMDB file
/// of this byte order and word size, or if its page size is invalid; MDB_VERSION_MISMATCH for another format
/// version.
Result<MetaRecord> parse_meta(Bytes page) noexcept;

/// Returns the page size of a checked meta page, in bytes.
inline std::size_t page_size(const MetaRecord& m) noexcept { return m.dbs[0].pad; }

}  // namespace lmdbio::format
