// The record index in a file beside the database, or in a directory of the user's: docs/format.md has the
// bytes.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lmdbio/base/result.h"
#include "lmdbio/format/layout.h"
#include "lmdbio/io/file.h"
#include "lmdbio/records/record_index.h"

namespace lmdbio::records {

/// What an index is of: one state of one database of one file.  Devices differ between machines that share a
/// file: identity.dev is not looked at.
struct IndexTag {
  std::string_view database;  ///< the named database's; empty: the main one
  std::uint64_t txnid = 0;
  std::size_t page_size = 0;     ///< bytes
  std::uint64_t file_pages = 0;  ///< whole ones
  format::DbRecord record{};
  FileIdentity identity;
  ::uid_t owner = 0;  ///< of the data file; load_index() uses it
};

/// Where the index of a database is kept.  `data_path`: of the data file.  `directory` empty: beside it,
/// "data.mdb.lmdbio-index", or "data.mdb.NAME.lmdbio-index" of a named database; else there, with inode and a
/// hash of the file's absolute path in the name.  ENOMEM, or as realpath(3).
Result<std::string> index_path(const std::string& data_path, std::string_view database, std::uint64_t inode,
                               const std::string& directory) noexcept;

/// Writes a new file, then puts it in the place of the old one: at any time there is the old one or the new
/// one, whole.  The new one has no name until then if the file system supports that (O_TMPFILE), else a
/// temporary name.  Removes temporary files that processes left when they were killed more than an hour ago.
/// Who may read the data file may read it, `data` being that one's, but for its group if the caller may not
/// give files to that.  `bytes`, if not null, becomes its size.  ENOMEM, or as open(2), write(2), fsync(2),
/// rename(2); EFBIG instead of SIGXFSZ.
Status save_index(const RecordIndex& index, const IndexTag& tag, const std::string& path,
                  const struct ::stat& data, std::uint64_t* bytes = nullptr) noexcept;

/// `out` is set if the answer is ok: an index of that state, and every number in it is checked.  `why`, if
/// not empty, becomes one line.  ENOENT: none; ESTALE: of another state or file; EPERM: it belongs neither to
/// this user, nor to root, nor to the owner of the database; MDB_CORRUPTED: not an index, damaged;
/// MDB_VERSION_MISMATCH; what open(2) and read(2) answer; ENOMEM.
Status load_index(const std::string& path, const IndexTag& tag, RecordIndex& out,
                  std::span<char> why = {}) noexcept;

/// load_index() from LMDBIO_INDEX_DIR, if that is set, else from beside the database.  False: none that can
/// be used; one line at warning level says so, once in a process, if there is one that cannot.
bool find_index(const std::string& data_path, const IndexTag& tag, RecordIndex& out) noexcept;

}  // namespace lmdbio::records
