// How much of a file is in the page cache.
#pragma once

#include <sys/stat.h>

#include <optional>

namespace lmdbio::cli {

struct Residency {
  std::optional<double> share;  ///< 0 to 1; none: this system does not tell this user
  const char* how = "";         ///< the system call that told
};

/// Of a regular file that is not empty.  mincore(2) says "all" to those who neither own the file nor may
/// write it: they are not told that.
Residency page_cache_share(int fd, const struct stat& status) noexcept;

}  // namespace lmdbio::cli
