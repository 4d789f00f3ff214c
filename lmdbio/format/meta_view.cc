#include "lmdbio/format/meta_view.h"

#include <lmdb.h>

#include "lmdbio/base/align.h"

namespace lmdbio::format {

MetaKind judge_meta(Bytes page) noexcept {
  if (page.size() < kMetaBytes || (load<std::uint16_t>(page, kAtFlags) & kMeta) == 0) return MetaKind::other;
  const auto m = load<MetaRecord>(page, kPageHeader);
  if (m.magic != kMagic || m.version != kVersion) return MetaKind::other;
  const std::size_t size = page_size(m);
  const bool sane = is_power_of_two(size) && size >= kMinPageSize && size <= kMaxPageSize;
  return sane ? MetaKind::good : MetaKind::bad_page_size;
}

Result<MetaRecord> parse_meta(Bytes page) noexcept {
  if (judge_meta(page) == MetaKind::good) return load<MetaRecord>(page, kPageHeader);
  const bool other_version = page.size() >= kMetaBytes &&
                             (load<std::uint16_t>(page, kAtFlags) & kMeta) != 0 &&
                             load<std::uint32_t>(page, kPageHeader) == kMagic &&
                             load<std::uint32_t>(page, kPageHeader + 4) != kVersion;
  return Status::from_mdb(other_version ? MDB_VERSION_MISMATCH : MDB_INVALID);
}

}  // namespace lmdbio::format
