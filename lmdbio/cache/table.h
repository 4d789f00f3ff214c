// Reads and writes the table of an image.  All functions need a descriptor of the calling thread's table, and
// return false if the table is damaged or the system call fails.
#pragma once

#include <cstdint>
#include <span>

#include "lmdbio/base/align.h"
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

bool read_header(int table, TableHeader& header) noexcept;
/// Sets the checksum of the header, and writes it.
bool write_header(int table, TableHeader& header) noexcept;
/// Reads the entries from the first chunk on.  Entries behind the end of the table are zeros.
bool read_entries(int table, std::span<TableEntry> entries) noexcept;
bool read_entry(int table, std::uint64_t chunk, TableEntry& entry) noexcept;
bool write_entry(int table, std::uint64_t chunk, const TableEntry& entry) noexcept;

}  // namespace lmdbio::cache
