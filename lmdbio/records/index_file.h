// Record indexes in files, beside the database or in a directory that the user has set. docs/format.md
// describes the format.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lmdbio/base/status.h"
#include "lmdbio/format/layout.h"
#include "lmdbio/io/file.h"
#include "lmdbio/records/record_index.h"

namespace lmdbio::records {

/// Identifies the state of one database that an index describes. identity.dev is ignored, since machines
/// that share a file may have different device numbers.
struct IndexTag {
  std::string_view database;  ///< name of the database; empty: the main one
  std::uint64_t txnid = 0;
  std::size_t page_size = 0;     ///< bytes
  std::uint64_t file_pages = 0;  ///< whole pages
  format::DbRecord record{};
  FileIdentity identity;
  ::uid_t owner = 0;  ///< of the data file, for load_index()
};

/// Writes a new index file and replaces the old one atomically.  The new file has no name until it is
/// complete if the file system supports O_TMPFILE, and a temporary name otherwise.  Removes temporary files
/// that killed processes left more than an hour ago.
///
/// `data`: status of the data file.  Users who may read the data file may read the index file, too.  Its
/// group cannot if the caller may not give files to that group.  `bytes`, if not null, is set to the size
/// of the index file.  Errors: ENOMEM, or as open(2), write(2), fsync(2) and rename(2).  EFBIG replaces
/// SIGXFSZ.
Status save_index(const RecordIndex& index, const IndexTag& tag, const std::string& path,
                  const struct ::stat& data, std::uint64_t* bytes = nullptr) noexcept;

/// Loads an index of the state that `tag` describes, and checks every number in it.  Sets `out` if it
/// succeeds.  `why`, if not empty, gets one line that explains a failure.  Errors: ENOENT if there is no
/// index file.  ESTALE if the index is of another state or file.  EPERM if the file belongs neither to this
/// user, nor to root, nor to the owner of the database.  MDB_CORRUPTED if it is damaged or not an index.
/// MDB_VERSION_MISMATCH.  ENOMEM.  Also those of open(2) and read(2).
Status load_index(const std::string& path, const IndexTag& tag, RecordIndex& out,
                  std::span<char> why = {}) noexcept;

/// Calls load_index() for the file in LMDBIO_INDEX_DIR, if that is set, or else for the file beside the
/// database.  Returns false if there is no usable index.  Logs an index that cannot be used: the first one
/// in a process as a warning, later ones at debug level.
bool find_index(const std::string& data_path, const IndexTag& tag, RecordIndex& out) noexcept;

}  // namespace lmdbio::records
