// Decides which environments the engine serves.
#pragma once

#include "lmdbio/format/layout.h"

namespace lmdbio::compat {

/// MDB_PREVSNAPSHOT and MDB_REMAP_CHUNKS of LMDB 1.0's lmdb.h.
inline constexpr unsigned kPrevSnapshot = 0x2000000, kRemapChunks = 0x4000000;

struct RouteFacts {
  unsigned env_flags;        ///< as mdb_env_get_flags after the open
  unsigned open_flags;       ///< as given to mdb_env_open
  format::PageFormat pages;  ///< of the file; size 0: not known
  bool regular = true;       ///< whether it is a regular file; others have no length
  bool own_pages = false;    ///< whether the program encrypts pages, or calculates their checksums (1.0)
};

/// Returns nullptr if the engine serves the environment, else the reason why stock does, for the statistics.
const char* route(const RouteFacts& facts) noexcept;

}  // namespace lmdbio::compat
