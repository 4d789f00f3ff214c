// Writes files into a directory, and nowhere else.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lmdbio/base/unique_fd.h"

namespace lmdbio::files {

/// Makes files below one directory, with the directories on their paths.  Follows no symbolic link below the
/// directory, and replaces no file.  Fast if consecutive files are in the same directory.  One thread.
class TreeWriter {
 public:
  /// The result for one file.
  struct Outcome {
    int error = 0;      ///< 0, or an errno
    bool full = false;  ///< the error concerns the file system, so that further files would fail, too
    std::string why;    ///< the part of the path that failed, and the reason
  };

  /// Opens `directory`, and makes it if it does not exist.  Throws std::system_error.
  explicit TreeWriter(const std::string& directory);
  TreeWriter(const TreeWriter&) = delete;
  TreeWriter& operator=(const TreeWriter&) = delete;

  /// Makes the file `name`, a relative path as name_of() returns.  An incomplete file is removed.  May throw
  /// bad_alloc.
  Outcome put(std::string_view name, std::string_view contents);

 private:
  int enter(std::string_view part) noexcept;
  int top() const noexcept { return open_.empty() ? root_.get() : open_.back().second.get(); }

  UniqueFd root_;
  std::vector<std::pair<std::string, UniqueFd>> open_;  ///< the directories on the path of the last file
};

}  // namespace lmdbio::files
