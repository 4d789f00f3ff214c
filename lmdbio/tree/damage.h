// Transactions that go on after damage, for LMDBIO's own programs.
#pragma once

#include <lmdb.h>

extern "C" {
/// Lets a read transaction that found a damaged page be used again.  Its cursors must be closed before, and
/// what they and lookups returned stays valid.  Returns 0; EINVAL: there is no such transaction, or LMDB
/// serves it; MDB_BAD_TXN: the transaction has ended, or its snapshot is lost.  LMDB's thread rules apply.
int lmdbio_txn_pardon(MDB_txn* txn);
}
