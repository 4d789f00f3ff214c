// Files that the real library cannot open, and the engine can: there is no real environment then.
#pragma once

#include <lmdb.h>

#include "compat/handle.h"

namespace lmdbio::compat {

// Both functions open an environment read-only without the real library (env.alone), and log one line.
// Transactions then take no locks.  They return false if LMDBIO_STRICT is set, if MDB_PREVSNAPSHOT is, or if
// this open fails as well.

/// Called after the real library refused the open of `path`.  Returns false if the file system can map the
/// file.
bool open_unmapped(EnvHandle& env, const char* path, unsigned flags);

/// Called before a read-only open of a file that has the format of the other release (Proof::other_release).
/// The real library would first initialize the lock file in its own format.
bool open_other_format(EnvHandle& env, const char* path, unsigned flags, mdb_mode_t mode);

}  // namespace lmdbio::compat
