// Files that cannot be mapped: the engine reads them into memory, and there is no real environment.
#pragma once

#include <lmdb.h>

#include "compat/handle.h"

namespace lmdbio::compat {

/// Called after the real library refused a read-only open of `path`.  If the file system cannot map the file,
/// opens the environment without mapping it (env.unmapped) and logs one line.  Returns false if that is not
/// the reason, or if this open fails as well; nothing has changed then.
bool open_unmapped(EnvHandle& env, const char* path, unsigned flags);

}  // namespace lmdbio::compat
