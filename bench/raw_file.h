// Functions of the raw readers: they open the file without the page cache, and make buffers of huge pages.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "bench/common.h"

namespace lmdbio::bench {

struct RawFile {
  int fd = -1;
  bool direct = false;
  std::uint64_t bytes = 0;
};

/// Opens the file, with O_DIRECT if the file system supports it.
inline RawFile open_raw(const std::string& path) {
  RawFile f;
  f.fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  f.direct = f.fd >= 0;
  if (f.fd < 0 && errno == EINVAL) f.fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (f.fd < 0 || fstat(f.fd, &status) != 0) die_errno(path.c_str());
  f.bytes = static_cast<std::uint64_t>(status.st_size);
  return f;
}

/// Returns memory whose pages exist already, so that no page is made while the clock runs.
inline char* make_buffers(std::size_t bytes) {
  constexpr std::size_t kHuge = 2u << 20;
  void* const at = mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) die_errno("mmap");
  char* const aligned =
      reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(at) + kHuge - 1) / kHuge * kHuge);
  madvise(aligned, bytes, MADV_HUGEPAGE);  // without huge pages it is slower, not wrong
  std::memset(aligned, 0, bytes);
  return aligned;
}

}  // namespace lmdbio::bench
