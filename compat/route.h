// Decides which environments the engine serves.
#pragma once

#include <cstddef>

namespace lmdbio::compat {

struct RouteFacts {
  unsigned env_flags;     ///< as mdb_env_get_flags after the open
  unsigned open_flags;    ///< as given to mdb_env_open
  std::size_t page_size;  ///< of the file; 0: not known
  bool regular = true;    ///< whether it is a regular file; others have no length
};

/// Returns nullptr if the engine serves the environment, else the reason why stock does, for the statistics.
const char* route(const RouteFacts& facts) noexcept;

}  // namespace lmdbio::compat
