#include "compat/route.h"

#include <lmdb.h>

namespace lmdbio::compat {

const char* route(const RouteFacts& facts) noexcept {
  if ((facts.env_flags & MDB_RDONLY) == 0) return "writable environment";
  if (((facts.env_flags | facts.open_flags) & MDB_FIXEDMAP) != 0) return "MDB_FIXEDMAP";
  if ((facts.env_flags & MDB_WRITEMAP) != 0) return "MDB_WRITEMAP";
  if (!facts.regular) return "not a regular file";
  if (facts.own_pages) return "functions for encryption or checksums";
  if ((facts.env_flags & kPrevSnapshot) != 0) return "MDB_PREVSNAPSHOT";
  if ((facts.env_flags & kRemapChunks) != 0) return "MDB_REMAP_CHUNKS";
  if (facts.pages.size < format::kMinPageSize ||
      facts.pages.size > format::max_page_size(facts.pages.version))
    return "unsupported page size";
  return nullptr;
}

}  // namespace lmdbio::compat
