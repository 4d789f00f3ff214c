// What is known of the file system that a file is on.
#pragma once

#include <cstdint>

namespace lmdbio {

/// The file system is the kernel's own, over local devices or memory: its locks and reads wait for this
/// machine only, unlike those of a network or of a FUSE daemon.  False also for kinds that are not known;
/// true where the kernel does not tell (no such path: the call that follows will say so).  errno preserved.
bool is_local_file_system(int fd) noexcept;
bool is_local_file_system(const char* path) noexcept;
/// What the kernel reads ahead of page faults on the device or mount of `fd`, bytes; 0: it does not tell.
std::uint64_t kernel_readahead(int fd) noexcept;

}  // namespace lmdbio
