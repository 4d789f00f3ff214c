// The source of a reader: one database in one snapshot of a file, or several databases.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lmdbio/cache/image.h"
#include "lmdbio/format/compare.h"
#include "lmdbio/format/layout.h"
#include "lmdbio/gather/kept_file.h"
#include "lmdbio/gather/queues.h"
#include "lmdbio/gather/served_file.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/records/databases.h"

namespace lmdbio::records {

/// Alignment of buffers for direct reads, in bytes.  Files that need a larger alignment are read through
/// the page cache.
inline constexpr std::size_t kMostAlignment = 4096;

/// The database and the snapshot that a reader reads.  With several databases (`joined`), `file` is the first
/// file, `pages` are those of the joined file, and `txnid` and the orders have no meaning.
struct Source {
  std::shared_ptr<Databases> joined;  ///< null: one database
  std::shared_ptr<const OpenFile> file;
  std::string name;           ///< used in messages
  std::string path;           ///< path of the data file; its index file is looked up by this path
  std::size_t page_size = 0;  ///< bytes, a power of two
  format::Version version = format::Version::v09;
  std::uint64_t pages = 0;  ///< pages of the snapshot in the file; a page number beyond them is damage
  std::uint64_t txnid = 0;
  format::DbRecord db{};
  format::Comparator key_order{}, dup_order{};
  /// Holds the snapshot: no writer reuses its pages while this object exists.  The destructor of Source
  /// destroys it before the files are closed.
  std::shared_ptr<void> snapshot;
  /// The program's descriptor of the file; -1 if there is none.  The descriptor may refer to another file by
  /// now.
  int programs_fd = -1;

  const File& base() const noexcept { return file->base(); }
  /// Returns the file for direct reads, or nullptr if direct reads do not work or need a larger alignment.
  const File* direct() const noexcept {
    const File* const f = file->direct();
    return f != nullptr && f->alignment() <= kMostAlignment ? f : nullptr;
  }

  std::uint64_t available = 0;  ///< bytes that the page cache could grow by when this was made
  /// True if reads through the page cache also read the pages around the records.  False for ranks that read
  /// only some of the records, because other ranks read the neighbouring records.
  bool reads_around = false;
  /// The image of the database in the cache on local disk, or null.  `file` is the image itself if it has all
  /// of the database; otherwise make_engine reads through it.
  std::shared_ptr<cache::Image> image;
  bool is_image = false;                       ///< `file` is the image
  std::shared_ptr<gather::ServedFile> served;  ///< the database as the server of the node brings it, or null
  /// What the process keeps of `file` in its memory, or null.
  std::shared_ptr<gather::KeptFile> kept;
  gather::MakeEngine make_engine;  ///< makes the engines of readers and index builds; see gather::Queues
};

}  // namespace lmdbio::records
