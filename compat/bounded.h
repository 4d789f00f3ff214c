// Limits the time that the file locks of mdb_env_open may take.
#pragma once

#include <lmdb.h>

#include "compat/stock.h"

namespace lmdbio::compat {

/// Returned by open_bounded() after the time limit, and in a child that a signal handler has forked during
/// the call.  Not a code of LMDB.
inline constexpr int kLocksHang = -1;

/// Calls stock.env_open(env, ...) inside guarded().  Meanwhile the program's signal handlers may run.
int open_as_stock(const Stock& stock, MDB_env* env, const char* path, unsigned flags,
                  mdb_mode_t mode) noexcept;

/// Does the same with a time limit.  On network and user-space file systems, where a lock may hang forever, a
/// separate thread makes the call, and the caller waits at most LMDBIO_LOCK_SECONDS. `local` says that the
/// data file is known to be on a local file system.  Once LMDBIO has started another thread, opens on
/// local file systems use a separate thread, too, without a time limit.  Only an open of a local file without
/// locks, which waits for nothing, uses no thread; signal handlers are deferred until it is done.
///
/// After kLocksHang `env` belongs to that thread, and the caller must forget it.  The memory and descriptors
/// of a call that never ends are not released.
int open_bounded(const Stock& stock, MDB_env* env, const char* path, unsigned flags, mdb_mode_t mode,
                 bool local) noexcept;

}  // namespace lmdbio::compat
