// Finds the files in a tar archive: ustar, pax and GNU headers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace lmdbio::files {

/// An entry of an archive.
struct TarEntry {
  std::string name;                    ///< without "./" or slashes at its start
  char type = '0';                     ///< as in the header; '0' for all regular files, 'S' for sparse files
  std::uint64_t offset = 0, size = 0;  ///< of the contents, in bytes

  bool is_file() const noexcept { return type == '0'; }
  bool is_sparse() const noexcept { return type == 'S'; }
  bool is_directory() const noexcept { return type == '5'; }
};

/// Calls `found` for each entry of the archive in `fd`, a file that allows pread(2).  `path` is for messages.
/// Only headers are read.  Any bytes are a valid input.  The zeros at the end of the archive may be missing.
/// Throws Error (database.h) if the archive is damaged, truncated or compressed, and if the file cannot be
/// read.
void read_tar(int fd, const std::string& path, const std::function<void(TarEntry)>& found);

/// Reads `size` bytes at `offset`.  Returns how many there were before the end of the file, or a negative
/// errno.
std::int64_t read_at(int fd, std::uint64_t offset, char* out, std::size_t size) noexcept;

}  // namespace lmdbio::files
