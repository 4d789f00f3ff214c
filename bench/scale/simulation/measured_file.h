// A file whose page faults are measured.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bench/common.h"

namespace lmdbio::bench {

inline constexpr std::size_t kPage = 4096;
/// A fault maps resident pages around it: fault_around_bytes.
inline constexpr std::size_t kFaultAround = std::size_t{64} << 10;
/// A fault reads this number of bytes around it: the default of read_ahead_kb.
inline constexpr std::size_t kReadAround = std::size_t{128} << 10;

inline double seconds_of(const std::function<void()>& what) {
  const std::uint64_t begin = clock_ns();
  what();
  return static_cast<double>(clock_ns() - begin) * 1e-9;
}

class Mapping {
 public:
  Mapping(int fd, std::uint64_t bytes) : bytes_(bytes) {
    void* const at = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) die_errno("mmap");
    at_ = static_cast<const char*>(at);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { ::munmap(const_cast<char*>(at_), bytes_); }
  const char* bytes() const noexcept { return at_; }
  void touch(std::uint64_t offset) const { (void)*static_cast<const volatile char*>(at_ + offset); }

 private:
  const std::uint64_t bytes_;
  const char* at_ = nullptr;
};

struct OpenFile {
  explicit OpenFile(const std::string& path) : fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd < 0) die_errno(path.c_str());
    const off_t end = ::lseek(fd, 0, SEEK_END);
    if (end < 0) die_errno(path.c_str());
    bytes = static_cast<std::uint64_t>(end);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() { ::close(fd); }
  const int fd;
  std::uint64_t bytes = 0;
};

inline void read_all(const OpenFile& file) {
  std::vector<char> buffer(std::size_t{1} << 20);
  std::uint64_t at = 0;
  for (ssize_t n = 1; n > 0; at += static_cast<std::uint64_t>(n)) {
    n = ::pread(file.fd, buffer.data(), buffer.size(), static_cast<off_t>(at));
    if (n < 0) die_errno("pread");
  }
}

/// Returns offsets in random order, each once.
inline std::vector<std::uint64_t> places(std::uint64_t file_bytes, std::uint64_t each, std::uint64_t seed) {
  std::vector<std::uint64_t> offsets(file_bytes / each);
  for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = i * each;
  for (std::size_t i = offsets.size(); i > 1; --i) std::swap(offsets[i - 1], offsets[mix(seed + i) % i]);
  return offsets;
}

inline void drop(const OpenFile& file) {
  if (const int rc = ::posix_fadvise(file.fd, 0, 0, POSIX_FADV_DONTNEED); rc != 0)
    die("posix_fadvise: %s", std::strerror(rc));
}

}  // namespace lmdbio::bench
