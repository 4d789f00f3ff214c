// The first key after the page that a key belongs to, even if this page is damaged.
#pragma once

#include <lmdb.h>

#include "lmdbio/base/status.h"
#include "lmdbio/format/layout.h"
#include "lmdbio/tree/txn.h"

namespace lmdbio::tree {

/// Implements lmdbio_key_after_page() for a transaction that is not blocked; it may be blocked afterwards.
/// `bad`: the page that cannot be read; page 0 if there is none.  May run a user's comparator, which may
/// throw.
Status key_after_page(Txn& txn, MDB_dbi dbi, MDB_val& key, format::Pgno& bad);

}  // namespace lmdbio::tree
