// Facts about the file system that a file is on.
#pragma once

#include <cstdint>

namespace lmdbio {

/// Returns true if the kernel itself implements the file system, on local devices or in memory.  Locks and
/// reads then wait for this machine only, unlike those of a network file system or a FUSE daemon.  Returns
/// false for unknown kinds.  Returns true if the kernel does not report the kind, for example because the
/// path does not exist: the call that follows then reports this error.  errno preserved.
bool is_local_file_system(int fd) noexcept;
bool is_local_file_system(const char* path) noexcept;
/// Returns the kernel's read-ahead of page faults on the device or mount of `fd`, in bytes, or 0 if it is not
/// known.
std::uint64_t kernel_readahead(int fd) noexcept;

}  // namespace lmdbio
