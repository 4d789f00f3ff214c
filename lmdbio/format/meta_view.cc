#include "lmdbio/format/meta_view.h"

#include <lmdb.h>

#include "lmdbio/base/align.h"

namespace lmdbio::format {

Result<MetaRecord> parse_meta(Bytes page) noexcept {
  if (page.size() < kMetaBytes) return Status::from_mdb(MDB_INVALID);
  const auto flags = load<std::uint16_t>(page, kAtFlags);
  if ((flags & kMeta) == 0) return Status::from_mdb(MDB_INVALID);
  const auto m = load<MetaRecord>(page, kPageHeader);
  if (m.magic != kMagic) return Status::from_mdb(MDB_INVALID);
  if (m.version != kVersion) return Status::from_mdb(MDB_VERSION_MISMATCH);
  const std::size_t psize = page_size(m);
  if (!is_power_of_two(psize) || psize < kMinPageSize || psize > kMaxPageSize)
    return Status::from_mdb(MDB_INVALID);
  return m;
}

}  // namespace lmdbio::format
