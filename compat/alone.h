// Answers calls about an environment from the engine's state, if there is no real environment (for example in
// a forked child).
#pragma once

#include <lmdb.h>

#include "compat/handle.h"

namespace lmdbio::compat::alone {

/// Implement mdb_env_stat, mdb_env_info and mdb_reader_list for an environment without a real one.  They read
/// the newest snapshot without locks.
int env_stat(EnvHandle& env, MDB_stat* stat);
int env_info(EnvHandle& env, MDB_envinfo* info);
int reader_list(MDB_msg_func* func, void* ctx);

}  // namespace lmdbio::compat::alone
