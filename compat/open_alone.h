// Files that the real library cannot open, and the engine can: there is no real environment then.
#pragma once

#include <lmdb.h>

#include "compat/handle.h"

namespace lmdbio::compat {

/// Called after the real library refused a read-only open of `path` with `rc`.  Opens the environment without
/// the real library (env.alone), and logs one line, if the file system cannot map the file, or if the file
/// has the format of another release of LMDB.  Transactions then take no locks.  Returns false if neither is
/// the reason, or if this open fails as well; nothing has changed then.
bool open_alone(EnvHandle& env, const char* path, unsigned flags, int rc);

}  // namespace lmdbio::compat
