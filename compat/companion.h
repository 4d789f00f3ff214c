// The real library's environment beside ours: how it is opened, what happens where that is refused, and how a
// forked child gets its own.
#pragma once

#include <lmdb.h>

#include "compat/handle.h"

namespace lmdbio::compat {

/// Opens env.real.  Where stock fails for want of its lock file or its locks, and the open is read-only, a
/// new real environment takes its place, without locks (env.lockless), unless LMDBIO_STRICT is set: one line
/// tells. Returns stock's code.
int open_companion(EnvHandle& env, const char* path, unsigned flags, mdb_mode_t mode);

/// env.real, or, in a forked child, the one that it opens for itself at first need: one thread does, others
/// wait. Null: there is none; `error` then says why (an errno or MDB code).
MDB_env* companion(EnvHandle& env, int& error) noexcept;

/// Stock leaves the data file's descriptor to a program that is executed; of read-only environments it does
/// not get it.
void close_on_exec(const Stock& stock, MDB_env* real) noexcept;

/// In a forked child: the environments of ours forget the parent's companions.  Nothing of theirs is closed
/// or ended: reader slots are the parent's, and closing a descriptor of the lock file would drop the locks of
/// a companion opened meanwhile.  With the lock of lock_handles() held.
void forget_companions() noexcept;

/// Whether a transaction may go on without a reader slot after stock refused one with `rc`.
bool may_read_without_slot(const EnvHandle& env, int rc) noexcept;
void tell_without_slot(const EnvHandle& env, int rc) noexcept;

/// A transaction without locks ends: tells, once an environment, if a writer may have changed what it read.
void look_back(ReadTxn& t) noexcept;

}  // namespace lmdbio::compat
