#include "compat/route.h"

#include <lmdb.h>

#include "lmdbio/format/layout.h"

namespace lmdbio::compat {

const char* route(const RouteFacts& facts) noexcept {
  if ((facts.env_flags & MDB_RDONLY) == 0) return "writable environment";
  if (((facts.env_flags | facts.open_flags) & MDB_FIXEDMAP) != 0) return "MDB_FIXEDMAP";
  if ((facts.env_flags & MDB_WRITEMAP) != 0) return "MDB_WRITEMAP";
  if (!facts.regular) return "not a regular file";
  if (facts.page_size < format::kMinPageSize || facts.page_size > format::max_page_size(format::Version::v10))
    return "unsupported page size";
  return nullptr;
}

}  // namespace lmdbio::compat
