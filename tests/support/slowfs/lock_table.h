// The fcntl locks of one file.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace lmdbio::slowfs {

struct Lock {
  std::uint64_t first, last;  // bytes, both included
  short type;                 // F_RDLCK, F_WRLCK, F_UNLCK
  std::uint64_t owner;        // as FUSE names it
  pid_t pid;
};

/// POSIX byte-range locks: a new one of the same owner replaces what it overlaps.  No locking inside.
class LockTable {
 public:
  /// A lock of another owner that stands in the way of `wanted`.
  std::optional<Lock> conflict(const Lock& wanted) const;
  /// `wanted` has no conflict.  True: something may have become free.
  bool set(const Lock& wanted);
  /// True: there were some.
  bool drop_owner(std::uint64_t owner);
  bool drop_all();

 private:
  std::vector<Lock> held_;  // no two of one owner overlap
};

}  // namespace lmdbio::slowfs
