// Files that the real library cannot open, and the engine can: there is no real environment then.
#pragma once

#include <lmdb.h>

#include "compat/handle.h"

namespace lmdbio::compat {

/// Called after the real library refused a read-only open of `path` with `rc`.  Opens the environment without
/// the real library (env.alone), and logs one line, if the file system cannot map the file, or if the file
/// has the format of another release of LMDB.  Transactions then take no locks.  Returns false if neither is
/// the reason, if LMDBIO_STRICT is set, or if this open fails as well; nothing has changed then.
bool open_alone(EnvHandle& env, const char* path, unsigned flags, int rc);

/// Called before a read-only open by a real library that refuses the files that the engine reads
/// (Stock::opens_served_files()).  If `path` is such a file, opens it without the real library, which would
/// first initialize the lock file in its own format.  Returns false if the real library has to open it.
bool open_other_format(EnvHandle& env, const char* path, unsigned flags, mdb_mode_t mode);

}  // namespace lmdbio::compat
