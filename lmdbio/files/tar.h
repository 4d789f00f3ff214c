// Headers of tar archives: ustar, with pax headers for names that do not fit (POSIX.1-2017, pax).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lmdbio::files {

/// Everything in an archive begins at a multiple of this size, in bytes.
inline constexpr std::size_t kTarBlock = 512;

/// Returns the headers of a regular file, a multiple of kTarBlock.  `size`: bytes, less than 2^33 (a value of
/// LMDB has less than 2^32).  `mtime`: seconds since 1970, at least 0 and less than 2^33.  The file has mode
/// 0644 and belongs to user and group 0.  May throw bad_alloc.
std::string tar_header(std::string_view name, std::uint64_t size, std::uint64_t mtime);

/// Returns how many zeros follow the contents of a file of `size` bytes.
constexpr std::size_t tar_padding(std::uint64_t size) noexcept {
  return static_cast<std::size_t>((kTarBlock - size % kTarBlock) % kTarBlock);
}

/// Returns the bytes at the end of an archive.
inline std::string tar_end() { return std::string(2 * kTarBlock, '\0'); }

}  // namespace lmdbio::files
