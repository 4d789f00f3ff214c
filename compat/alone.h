// Calls about an environment that a forked child cannot open again: answered from what the engine knows.
#pragma once

#include <lmdb.h>

#include "compat/handle.h"

namespace lmdbio::compat::alone {

/// As the functions of those names, for an environment with an engine and without a real one.  The newest
/// snapshot is read without locks.
int env_stat(EnvHandle& env, MDB_stat* stat);
int env_info(EnvHandle& env, MDB_envinfo* info);
int reader_list(MDB_msg_func* func, void* ctx);

}  // namespace lmdbio::compat::alone
