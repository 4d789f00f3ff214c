// Files that cannot be mapped: the engine reads them into memory, there is no real environment beside it.
#pragma once

#include <lmdb.h>

#include "compat/handle.h"

namespace lmdbio::compat {

/// After the real library refused a read-only open of `path`: if the file system lets nobody map the file, the
/// environment is opened without it (env.unmapped), which one line tells.  False: that is not the reason, or it
/// failed too; nothing has changed.
bool open_unmapped(EnvHandle& env, const char* path, unsigned flags);

}  // namespace lmdbio::compat
