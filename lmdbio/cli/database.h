// Opens a data file for inspection.  It never opens the lock file, and never writes.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lmdbio/format/meta_view.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/tree/snapshot.h"
#include "lmdbio/window/window.h"

namespace lmdbio::cli {

/// One of the two meta pages, and its problem if it has one.
struct Meta {
  bool usable = false;  ///< its record is valid enough to start a walk from it
  std::string problem;  ///< empty: no problem
  format::MetaRecord record{};
};

/// An open data file.  One thread at a time.
class Database {
 public:
  /// Opens `path`, a data file or a directory that contains data.mdb.  Throws Failure if it is neither.
  explicit Database(const std::string& path);
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  const std::string& path() const noexcept { return path_; }    ///< of the file
  bool in_directory() const noexcept { return in_directory_; }  ///< false: opened as with MDB_NOSUBDIR
  int fd() const noexcept { return file_->buffered().fd(); }
  const OpenFile& file() const noexcept { return *file_; }
  const struct stat& status() const noexcept { return status_; }
  std::size_t page_size() const noexcept { return page_size_; }
  format::Version version() const noexcept { return version_; }
  /// Returns a meta page as it was when the file was opened.
  const Meta& meta(unsigned which) const noexcept { return metas_[which]; }

  /// Returns the newest snapshot, or the snapshot of meta page `which` (0 or 1).  Throws Failure if there
  /// is none.
  tree::Snapshot snapshot(std::optional<unsigned> which = {});
  /// Returns the current newest transaction.
  std::uint64_t newest() const noexcept;
  /// Disables the kernel's read-ahead.  Call it before the first view(), for a walk that does its own
  /// read-ahead.
  void read_exactly() noexcept;
  /// Returns a view of the pages that the file has now.  The previous view becomes invalid.  If the file is
  /// truncated while its pages are read, the process ends with a message.
  window::WindowView view();

 private:
  void judge_metas();
  [[noreturn]] void refuse_format(Bytes head) const;

  std::string path_;
  bool in_directory_ = false;
  struct stat status_ {};
  std::shared_ptr<const OpenFile> file_;
  std::size_t page_size_ = 0;
  format::Version version_ = format::Version::v09;
  Meta metas_[2];
  bool exactly_ = false;
  std::optional<window::Window> window_;
  std::uint64_t mapped_bytes_ = 0;
};

}  // namespace lmdbio::cli
