// mdb_env_open with a bound on the time that its file locks may take.
#pragma once

#include <lmdb.h>

#include "compat/stock.h"

namespace lmdbio::compat {

/// What open_bounded answers when the time was over.  No code of LMDB's.
inline constexpr int kLocksHang = -1;

/// stock.env_open(env, ...), inside of guarded(): the program's signal handlers run meanwhile.
int open_as_stock(const Stock& stock, MDB_env* env, const char* path, unsigned flags,
                  mdb_mode_t mode) noexcept;

/// The same.  `local`: the data file is known to be on a local file system.  On file systems of a network or
/// of user space, where a lock may hang for ever, the call is made by a thread of its own, for
/// LMDBIO_LOCK_SECONDS at most.  Once LMDBIO has started another thread, every open has one, on local file
/// systems without a limit of time.  An open of a local file without locks waits for nobody: it needs no
/// thread, and signal handlers wait for it.  After kLocksHang `env` belongs to that thread: the caller
/// forgets it (memory and descriptors of a call that never ends stay).
int open_bounded(const Stock& stock, MDB_env* env, const char* path, unsigned flags, mdb_mode_t mode,
                 bool local) noexcept;

}  // namespace lmdbio::compat
