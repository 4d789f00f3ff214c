// Transactions that go on after damage, for LMDBIO's own programs.
#pragma once

#include <lmdb.h>

extern "C" {
/// Lets a read transaction that found a damaged page be used again.  Its cursors must be closed before, and
/// what they and lookups returned stays valid.  Returns 0; EINVAL: there is no such transaction, or LMDB
/// serves it; MDB_BAD_TXN: the transaction has ended, or its snapshot is lost.  LMDB's thread rules apply.
int lmdbio_txn_pardon(MDB_txn* txn);
/// Finds out where keys go on after a damaged page.  Follows `key` (empty: the first key) from the root, and
/// sets `key` to the first key of the next page, and `page` to the number of the page that cannot be read, or
/// to 0.  The new key belongs to the transaction.  Errors: MDB_NOTFOUND if there is no next page; `page` is
/// set then, too.  Otherwise as above, and those of mdb_stat.
int lmdbio_key_after_page(MDB_txn* txn, MDB_dbi dbi, MDB_val* key, size_t* page);
}
