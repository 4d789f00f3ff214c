// A process of its own that commits to databases which the program under test reads.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/diff/databases.h"

namespace lmdbio::diff {

class Writer {
 public:
  /// Forks.  The calling process must not have opened an environment of its own yet.
  Writer(const test::LmdbApi& lmdb, const std::vector<Environment>& environments);
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  /// Commits the same changes, decided by `seed`, to each of `dirs` (copies of environments[which]) and
  /// waits. False if the writer failed; it has then said why on stderr.
  bool commit(int which, std::uint64_t seed, bool no_subdir, const std::vector<std::string>& dirs);

 private:
  int to_child_ = -1;
  int from_child_ = -1;
  pid_t child_ = -1;
};

}  // namespace lmdbio::diff
