// A data file, opened for looking into it: never its lock file, never for writing.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lmdbio/cache/window.h"
#include "lmdbio/db/snapshot.h"
#include "lmdbio/format/meta_view.h"
#include "lmdbio/io/open_file.h"

namespace lmdbio::cli {

/// One of the two meta pages, and what is wrong with it.
struct Meta {
  bool usable = false;  ///< its record can be believed so far that a walk may start from it
  std::string problem;  ///< empty: none
  format::MetaRecord record{};
};

class Database {
 public:
  /// `path`: a directory with data.mdb in it, or the file.  Throws Failure, saying what the path is instead.
  explicit Database(const std::string& path);
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  const std::string& path() const noexcept { return path_; }    ///< of the file
  bool in_directory() const noexcept { return in_directory_; }  ///< else opened as with MDB_NOSUBDIR
  int fd() const noexcept { return file_->buffered().fd(); }
  const OpenFile& file() const noexcept { return *file_; }
  const struct stat& status() const noexcept { return status_; }
  std::size_t page_size() const noexcept { return page_size_; }
  /// As they were read at the open.
  const Meta& meta(unsigned which) const noexcept { return metas_[which]; }

  /// The newest snapshot, or (0, 1) that of one meta page; throws Failure if there is none.
  db::Snapshot snapshot(std::optional<unsigned> which = {});
  /// The newest transaction, now.
  std::uint64_t newest() const noexcept;
  /// Before the first view: the kernel reads nothing beyond what is asked for.  For who goes through the tree
  /// and reads ahead by itself.
  void read_exactly() noexcept;
  /// The pages that the file has now; the view before ends.  A file that is truncated while they are read
  /// ends the process with a message.
  cache::WindowView view();

 private:
  void judge_metas();
  [[noreturn]] void refuse_format(Bytes head) const;

  std::string path_;
  bool in_directory_ = false;
  struct stat status_ {};
  std::shared_ptr<const OpenFile> file_;
  std::size_t page_size_ = 0;
  Meta metas_[2];
  bool exactly_ = false;
  std::optional<cache::Window> window_;
  std::uint64_t mapped_bytes_ = 0;
};

}  // namespace lmdbio::cli
