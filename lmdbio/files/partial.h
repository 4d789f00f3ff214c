// A directory that is being filled, and gets its name when it is complete.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "lmdbio/base/unique_fd.h"

namespace lmdbio::files {

/// The directory `path` + ".partial", which one process at a time may fill.  Throws Error (database.h),
/// bad_alloc and std::filesystem::filesystem_error.  Its state is in the file `path` + ".partial.state".
class Partial {
 public:
  /// Makes the directory, or continues with one that was left behind.  `fingerprint`: of what is put there.
  /// It is an error if `path` exists and was not published with this fingerprint, if the directory was made
  /// for something else, and if another process fills it.  If the machine was started again after the
  /// directory was written, the old contents are removed.
  Partial(const std::string& path, std::uint64_t fingerprint);
  const std::string& directory() const noexcept { return directory_; }
  /// Returns true if the directory is complete and has its name: an earlier process has ended before
  /// forget().
  bool is_published() const noexcept { return published_; }
  /// Gives the directory its name, unless it has it, after everything in it was synced.
  void publish();
  /// Removes the state, after publish().
  void forget();

  /// Returns the paths that an object for `path` uses.  Some of them may not exist.
  static std::array<std::string, 3> paths(const std::string& path);

 private:
  const std::string path_, directory_, state_path_;
  UniqueFd state_;  ///< locked while this object exists
  bool published_ = false;
};

}  // namespace lmdbio::files
