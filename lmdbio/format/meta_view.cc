#include "lmdbio/format/meta_view.h"

#include <lmdb.h>

#include "lmdbio/base/align.h"

namespace lmdbio::format {

namespace {

/// Returns whether `page` has a meta page of any version, laid out as `version` is.
bool has_meta(Version version, Bytes page) noexcept {
  return page.size() >= meta_bytes(version) && (load<std::uint16_t>(page, at_flags(version)) & kMeta) != 0 &&
         load<std::uint32_t>(page, page_header(version)) == kMagic;
}

MetaRecord record(Version version, Bytes page) noexcept {
  return load<MetaRecord>(page, page_header(version));
}

}  // namespace

bool is_meta_of(Version version, Bytes page) noexcept {
  return has_meta(version, page) && record(version, page).version == meta_version(version);
}

MetaKind judge_meta(Bytes page) noexcept {
  constexpr unsigned kEncrypted = 0x2000;  // MDB_ENCRYPT of LMDB 1.0
  for (const Version v : {Version::v09, Version::v10}) {
    if (!is_meta_of(v, page)) continue;
    const MetaRecord m = record(v, page);
    const std::size_t size = page_size(m);
    const bool sane = is_power_of_two(size) && size >= kMinPageSize && size <= max_page_size(v);
    if (!sane) return MetaKind::bad_page_size;
    return v == Version::v10 && (m.dbs[0].flags & kEncrypted) != 0 ? MetaKind::encrypted : MetaKind::good;
  }
  return MetaKind::other;
}

Result<MetaRecord> parse_meta(Bytes page) noexcept {
  const MetaKind kind = judge_meta(page);
  bool known = kind == MetaKind::encrypted;
  for (const Version v : {Version::v09, Version::v10}) {
    if (!has_meta(v, page)) continue;
    const MetaRecord m = record(v, page);
    if (kind == MetaKind::good && m.version == meta_version(v)) return m;
    known = known || m.version != meta_version(v);
  }
  return Status::from_mdb(known ? MDB_VERSION_MISMATCH : MDB_INVALID);
}

}  // namespace lmdbio::format
