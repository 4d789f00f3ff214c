// Stores record indexes in files, beside the database or in a directory that the user has set.  The format is
// described in docs/format.md.
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

/// Identifies the state of one database that an index describes.  Ignores identity.dev, since machines that
/// share a file may have different device numbers.
struct IndexTag {
  std::string_view database;  ///< name of the database; empty: the main one
  std::uint64_t txnid = 0;
  std::size_t page_size = 0;  ///< bytes
  format::Version version = format::Version::v09;
  std::uint64_t file_pages = 0;  ///< whole pages
  format::DbRecord record{};
  FileIdentity identity;
  ::uid_t owner = 0;  ///< owner of the data file, for load_index()
};

/// Writes a new index file and replaces the old file atomically.  If the file system supports O_TMPFILE, the
/// new file has no name until it is complete.  Otherwise, it has a temporary name.  Removes temporary files
/// that killed processes left more than an hour ago.
///
/// `data`: status of the data file.  Users who may read the data file may read the index file, too.
/// Exception: if the caller cannot set the index file's group to that of the data file, the group cannot read
/// it.  Sets `bytes`, if it is not null, to the size of the index file.  Errors: ENOMEM, or as open(2),
/// write(2), fsync(2) and rename(2).  EFBIG replaces SIGXFSZ.
Status save_index(const RecordIndex& index, const IndexTag& tag, const std::string& path,
                  const struct ::stat& data, std::uint64_t* bytes = nullptr) noexcept;

/// Loads the index of the state that `tag` describes, and checks every number in the index.  Sets `out` if it
/// succeeds.  If it fails, writes one line that explains the failure to `why`, unless `why` is empty.
/// Errors: ENOENT if there is no index file.  ESTALE if the index describes another state or file.  EPERM if
/// the owner of the index file is neither this user, nor root, nor the owner of the database.  MDB_CORRUPTED
/// if the file is damaged or not an index.  MDB_VERSION_MISMATCH.  ENOMEM.  Errors of open(2) and read(2).
Status load_index(const std::string& path, const IndexTag& tag, RecordIndex& out,
                  std::span<char> why = {}) noexcept;

/// Calls load_index() for the file in LMDBIO_INDEX_DIR.  If that variable is not set, calls it for the file
/// beside the database.  Returns false if there is no usable index.  Logs each index that cannot be used.
/// The first message of a process is a warning; later messages have debug level.
bool find_index(const std::string& data_path, const IndexTag& tag, RecordIndex& out) noexcept;

}  // namespace lmdbio::records
