// Tells which file a descriptor is open on, and how large the file is.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>

#include "lmdbio/base/result.h"

namespace lmdbio {

/// Identifies a file, and one state of its contents, on this machine.
struct FileIdentity {
  std::uint64_t dev = 0;
  std::uint64_t ino = 0;
  std::uint64_t size = 0;  // in bytes
  std::int64_t mtime_ns = 0;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

/// Returns the size of `fd`'s file in bytes, as this machine knows it, or 0 if it is not known.  Sends no
/// request to the server of a network file system.  (fstat(2) sends one whenever a read has changed the
/// access time.)
std::uint64_t size_known_here(int fd) noexcept;

/// Returns true if `fd` is open on the inode `id`, as far as this machine knows.  Sends no request to a
/// server.  Detects that the program has reused the number of a descriptor of LMDBIO.
bool is_inode(int fd, const FileIdentity& id) noexcept;
/// Returns the size in bytes if `fd` is the inode `id`, else nullopt.  Makes one system call.
std::optional<std::uint64_t> size_if_inode(int fd, const FileIdentity& id) noexcept;
/// Returns the identity of the file, as File::identity().
Result<FileIdentity> identity_of(int fd) noexcept;
FileIdentity identity_of(const struct stat& st) noexcept;

}  // namespace lmdbio
