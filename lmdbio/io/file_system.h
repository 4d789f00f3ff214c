// Facts about the file system that a file is on.
#pragma once

#include <cstdint>

namespace lmdbio {

/// True if the kernel itself implements the file system, on local devices or in memory.  Its locks and reads
/// then wait for this machine only, unlike those of a network file system or a FUSE daemon.  False also for
/// unknown kinds.  True if the kernel does not tell, for example if the path does not exist: the call that
/// follows will report that.  errno preserved.
bool is_local_file_system(int fd) noexcept;
bool is_local_file_system(const char* path) noexcept;
/// Returns the kernel's read-ahead of page faults on the device or mount of `fd`, in bytes; 0: not known.
std::uint64_t kernel_readahead(int fd) noexcept;

}  // namespace lmdbio
