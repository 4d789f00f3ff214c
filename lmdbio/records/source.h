// What a reader reads: one database in one snapshot of a file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lmdbio/db/compare.h"
#include "lmdbio/format/layout.h"
#include "lmdbio/io/open_file.h"

namespace lmdbio::records {

/// Of direct reads, bytes: what buffers are aligned to.  Files that ask for more are read through the page
/// cache.
inline constexpr std::size_t kMostAlignment = 4096;

struct Source {
  std::shared_ptr<const OpenFile> file;
  std::string name;           ///< for messages
  std::string path;           ///< of the data file, where its index is looked for
  std::size_t page_size = 0;  ///< bytes, a power of two
  std::uint64_t pages = 0;    ///< of the snapshot, all of them inside the file; what is beyond is damage
  std::uint64_t txnid = 0;
  format::DbRecord db{};
  db::Comparator key_order{}, dup_order{};
  /// As long as this lives no writer uses the snapshot's pages for others.  Goes with the Source, before the
  /// files do.
  std::shared_ptr<void> snapshot;
  /// The program's descriptor of the file; -1: none.  It may be another file's by now.
  int programs_fd = -1;

  const File& base() const noexcept { return file->base(); }
  /// Null: direct reads do not work, or not with these buffers.
  const File* direct() const noexcept {
    const File* const f = file->direct();
    return f != nullptr && f->alignment() <= kMostAlignment ? f : nullptr;
  }

  std::uint64_t available = 0;  ///< memory that the page cache could grow by when this was made, bytes
};

}  // namespace lmdbio::records
