// Meta pages: what a file says of itself.
#pragma once

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/result.h"
#include "lmdbio/format/layout.h"

namespace lmdbio::format {

/// Copies and checks the meta page that starts `page` (kMetaBytes at least are looked at).
/// MDB_INVALID: not an LMDB file of this byte order and word size, or a page size that no LMDB has;
/// MDB_VERSION_MISMATCH: another format version.
Result<MetaRecord> parse_meta(Bytes page) noexcept;

/// Page size of a checked meta, in bytes: a power of two from kMinPageSize to kMaxPageSize.
inline std::size_t page_size(const MetaRecord& m) noexcept { return m.dbs[0].pad; }

}  // namespace lmdbio::format
