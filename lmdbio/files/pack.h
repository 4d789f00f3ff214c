// Packs files into a database, or into several.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lmdbio/files/pack_list.h"
#include "lmdbio/format/layout.h"

namespace lmdbio::files {

struct PackOptions {
  std::vector<std::string> sources;  ///< as for PackList
  std::string database;              ///< directory to make
  std::string label_database;        ///< directory of a database with the labels; empty: none
  PackOrder order;
  std::uint64_t most_bytes = 0;  ///< of each shard; 0: one database without shards
  format::Version format = format::Version::v09;
};

struct PackResult {
  std::uint64_t files = 0, bytes = 0;  ///< of the whole list
  std::uint64_t resumed = 0;           ///< files that an earlier call had written
  std::vector<std::string> left_out;   ///< one line for each entry that is not a regular file
  std::vector<std::string> databases;  ///< directories of all databases, those of labels included
};

/// Reports how many bytes of files are written.
using PackProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// Writes the files in the order of their keys.  While it works, and after a failure, the database is in a
/// directory with ".partial" after its name.  The next call with the same arguments and files continues
/// there, unless the machine was started again meanwhile: then it begins again, because commits are not
/// synced.  Shards are directories 00000, 00001, ... in the database's directory.  Throws Error (database.h)
/// and bad_alloc, and std::system_error.
PackResult pack(const PackOptions& options, const PackProgress& progress);

}  // namespace lmdbio::files
