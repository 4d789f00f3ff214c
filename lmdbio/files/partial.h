// A directory that is being filled, and gets its name when it is complete.
#pragma once

#include <cstdint>
#include <string>

#include "lmdbio/base/unique_fd.h"

namespace lmdbio::files {

/// The directory `path` + ".partial", which one process at a time may fill.  Throws Error (database.h),
/// bad_alloc and std::filesystem::filesystem_error.
class Partial {
 public:
  /// Makes the directory, or continues with one that was left behind.  `fingerprint`: of what is put there.
  /// It is an error if `path` exists, if the directory was made for something else, and if another process
  /// fills it.  Removes what is there if the machine was started again since it was written.
  Partial(const std::string& path, std::uint64_t fingerprint);
  const std::string& directory() const noexcept { return directory_; }
  /// Gives the directory its name, after everything in it was synced.
  void complete();

 private:
  const std::string path_, directory_, state_path_;
  UniqueFd state_;  ///< locked while this object exists
};

}  // namespace lmdbio::files
