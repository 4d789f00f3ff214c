// Reads and writes the table of an image.  All functions need a descriptor of the calling thread's table, and
// return false if the table is damaged or the system call fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "lmdbio/base/align.h"
#include "lmdbio/cache/codec.h"
#include "lmdbio/cache/image_format.h"

namespace lmdbio::cache {

/// Returns the number of chunks of a database that uses this many bytes of its file.
constexpr std::uint64_t chunks_of(std::uint64_t used_bytes) noexcept {
  return (used_bytes + kChunkBytes - 1) / kChunkBytes;
}

/// Returns the offset in the map of an image at which the bits of a chunk start.
constexpr std::uint64_t units_at(std::uint64_t chunks, std::uint64_t chunk) noexcept {
  return align_up(sizeof(MapHeader) + chunks, 8) + chunk * (kUnitsPerChunk / 8);
}

/// Returns the distance of stored chunks in the data file of an image, in bytes.
constexpr std::uint64_t pitch_of(Recipe recipe) noexcept {
  return recipe.codec == Codec::raw ? kChunkBytes : kChunkBytes + kUnitBytes;
}
/// Returns the recipe that the header names, which may be invalid.
Recipe recipe_of(const TableHeader& header) noexcept;
bool read_header(int table, TableHeader& header) noexcept;
/// Sets the checksum of the header, and writes it.
bool write_header(int table, TableHeader& header) noexcept;
/// Reads the entries from the first chunk on.  Entries behind the end of the table are zeros.
bool read_entries(int table, std::span<TableEntry> entries) noexcept;
bool read_entry(int table, std::uint64_t chunk, TableEntry& entry) noexcept;
bool write_entry(int table, std::uint64_t chunk, const TableEntry& entry) noexcept;

/// Returns a number that identifies a file on this machine, from the inode and the time of its birth.  A file
/// that gets the inode of a file that was removed has another number.  0: not known.
std::uint64_t file_number(int fd) noexcept;
/// Sets `out` to the XXH3 of a part of a file.
bool checksum_of(int fd, std::uint64_t offset, std::uint64_t bytes, std::uint64_t& out) noexcept;

}  // namespace lmdbio::cache
