// Checks and copies meta pages, which describe their file.
#pragma once

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/result.h"
#include "lmdbio/format/layout.h"

namespace lmdbio::format {

enum class MetaKind : unsigned char {
  good,
  other,          ///< not a meta page of a known version, this byte order and this word size
  bad_page_size,  ///< a meta page whose page size is not a power of two from kMinPageSize to max_page_size()
  encrypted,      ///< of LMDB 1.0, with encrypted pages
};

/// Returns whether `page` starts with a meta page of `version`, whose page size may be invalid.
bool is_meta_of(Version version, Bytes page) noexcept;

/// Checks the meta page at the start of `page`.  Returns MetaKind::other if `page` is shorter than the
/// record.
MetaKind judge_meta(Bytes page) noexcept;

/// Returns a copy of the meta page at the start of `page`.  Errors: MDB_INVALID if this is not an LMDB file
/// of this byte order and word size, or if its page size is invalid; MDB_VERSION_MISMATCH for another format
/// version, and for encrypted pages.
Result<MetaRecord> parse_meta(Bytes page) noexcept;

/// Returns the version of a checked meta page.
constexpr Version version(const MetaRecord& m) noexcept {
  return m.version == meta_version(Version::v10) ? Version::v10 : Version::v09;
}

/// Returns the page size of a checked meta page, in bytes.
inline std::size_t page_size(const MetaRecord& m) noexcept { return m.dbs[0].pad; }

}  // namespace lmdbio::format
