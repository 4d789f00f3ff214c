// The records that an lmdbio_reader leaves out.
#pragma once

#include <lmdbio/lmdbio.h>

#include <string>
#include <vector>

#include "compat/handle.h"
#include "lmdbio/base/result.h"
#include "lmdbio/records/joined_locations.h"

namespace lmdbio::compat {

/// Finds the keys that `options` excludes, each with its number of values.  `name`: of the database, for
/// messages.  On failure sets `why`.  Errors: ENOTSUP if the program sets the order of keys; those of LMDB's
/// lookups.
Status find_excluded(const ReadTxn& t, MDB_dbi dbi, const lmdbio_reader_options& options,
                     const std::string& name, std::vector<records::Excluded>& out, std::string& why);

}  // namespace lmdbio::compat
