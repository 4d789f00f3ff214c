// Names of index files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lmdbio/base/result.h"

namespace lmdbio::records {

/// Returns the path of the index file of a database.  `data_path`: path of the data file.  If `directory` is
/// empty, the index file is beside the data file: "data.mdb.lmdbio-index", or "data.mdb.NAME.lmdbio-index"
/// for a named database.  Otherwise the index file is in `directory`, and its name contains the data file's
/// inode and a hash of the data file's absolute path.  Errors: ENOMEM, or as realpath(3).
Result<std::string> index_path(const std::string& data_path, std::string_view database, std::uint64_t inode,
                               const std::string& directory) noexcept;

}  // namespace lmdbio::records
