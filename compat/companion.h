// The companion: the real library's environment beside ours.  Opens it, without locks if necessary, and opens
// another one for a forked child.
#pragma once

#include <lmdb.h>

#include "compat/handle.h"

namespace lmdbio::compat {

/// Returns how the engine behaves for programs of the real library.
inline tree::Behaviour behaviour_of(const Stock& stock) noexcept {
  return stock.series == Series::v10 ? tree::Behaviour::of_1_0() : tree::Behaviour::of_release(stock.patch);
}

/// Records the arguments of an open in env.setup, before the open.
void note_open(EnvHandle& env, const char* path, unsigned flags, mdb_mode_t mode);

/// Opens env.real.  If a read-only open fails because of stock's lock file or locks, opens a new real
/// environment without locks in its place (env.lockless) and logs one line, unless LMDBIO_STRICT is set.
/// Returns stock's code.
int open_companion(EnvHandle& env, const char* path, unsigned flags, mdb_mode_t mode);

/// Returns env.real.  A forked child opens its own at first need: one thread opens it, others wait.  Returns
/// nullptr if there is none; `error` is then an errno or MDB code.
MDB_env* companion(EnvHandle& env, int& error) noexcept;

/// Sets close-on-exec for the descriptor of the data file, which stock lets executed programs inherit.
/// Called for read-only environments.
void close_on_exec(const Stock& stock, MDB_env* real) noexcept;

/// For a forked child: our environments forget the parent's companions.  Does not end their transactions,
/// because the reader slots belong to the parent.  Does not close them either: that would drop the lock-file
/// locks of a companion opened meanwhile.  The caller holds the lock of lock_handles().
void forget_companions() noexcept;

/// may_read_without_slot() returns whether a transaction may go on without a reader slot after stock refused
/// one with `rc`. tell_without_slot() logs that.
bool may_read_without_slot(const EnvHandle& env, int rc) noexcept;
void tell_without_slot(const EnvHandle& env, int rc) noexcept;

/// Called when a transaction without locks ends.  Logs, once per environment, if a writer may have changed
/// pages that the transaction read.
void look_back(ReadTxn& t) noexcept;

}  // namespace lmdbio::compat
