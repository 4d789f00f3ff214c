// Answers calls about an environment without a real one (for example in a forked child) from the engine's
// state.
#pragma once

#include <lmdb.h>

#include "compat/handle.h"

namespace lmdbio::compat::alone {

/// Implement the functions of these names for an environment that has an engine but no real environment.
/// They read the newest snapshot without locks.
int env_stat(EnvHandle& env, MDB_stat* stat);
int env_info(EnvHandle& env, MDB_envinfo* info);
int reader_list(MDB_msg_func* func, void* ctx);

}  // namespace lmdbio::compat::alone
