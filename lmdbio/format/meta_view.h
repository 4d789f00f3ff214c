// Meta pages: what a file says of itself.
#pragma once

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/result.h"
#include "lmdbio/format/layout.h"

namespace lmdbio::format {

enum class MetaKind : unsigned char {
  good,
  other,          ///< no meta page of this format, version, byte order and word size
  bad_page_size,  ///< a meta page whose page size is no power of two from kMinPageSize to kMaxPageSize
};

/// Judges the meta page that starts `page`; fewer bytes than kMetaBytes: other.
MetaKind judge_meta(Bytes page) noexcept;

/// A copy of the same.  MDB_INVALID: not an LMDB file of this byte order and word size, or a page size that no
/// LMDB has; MDB_VERSION_MISMATCH: another format version.
Result<MetaRecord> parse_meta(Bytes page) noexcept;

/// Page size of a checked meta, in bytes.
inline std::size_t page_size(const MetaRecord& m) noexcept { return m.dbs[0].pad; }

}  // namespace lmdbio::format
