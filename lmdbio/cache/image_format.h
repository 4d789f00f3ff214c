// The files of one image in the directory of the cache.  docs/format.md describes them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lmdbio::cache {

/// Size of a chunk of an image, in bytes.  Chunk c is at offset c x kChunkBytes.
inline constexpr std::uint64_t kChunkBytes = std::uint64_t{4} << 20;
/// Unit in which an image records what it has of a chunk that is not complete, in bytes.
inline constexpr std::uint64_t kUnitBytes = 4096;
inline constexpr unsigned kUnitsPerChunk = kChunkBytes / kUnitBytes;

/// Starts the table of an image.  Entry c follows at kTableHeaderBytes + c x sizeof(TableEntry).
struct TableHeader {
  static constexpr char kMagic[8] = {'l', 'm', 'd', 'b', 'i', 'o', 'C', '1'};
  char magic[8];
  std::uint64_t data_number;  ///< file_number() of the data file to which the table belongs
  std::uint64_t used_bytes;   ///< bytes of the database file that the snapshot uses
  std::uint64_t snapshot;     ///< transaction id
  std::uint32_t page_bytes;
  std::uint8_t codec, filter;
  std::uint16_t filter_width;
  char path[4000];  ///< of the database file, cut to this length, with a final zero; for people
  std::uint64_t reserved[6];
  std::uint64_t checksum;  ///< XXH3 of all bytes before it
};
inline constexpr std::size_t kTableHeaderBytes = 4096;
static_assert(sizeof(TableHeader) == kTableHeaderBytes);

/// Describes a chunk.  All zeros: the image does not have it.
struct TableEntry {
  std::uint64_t checksum;  ///< XXH3 of the stored bytes
  std::uint32_t bytes;     ///< stored bytes, from the start of the chunk
  std::uint32_t reserved;
};
static_assert(sizeof(TableEntry) == 16);

/// What the processes of one boot know about the chunks of an image.  A file that they map.  It belongs to
/// the other files with the numbers in its header, and says nothing about others.  ChunkState of each chunk
/// follows the header; then, at a multiple of 8, kUnitsPerChunk bits for each chunk: one bit for each unit
/// that was written.
struct MapHeader {
  static constexpr char kMagic[8] = {'l', 'm', 'd', 'b', 'i', 'o', 'M', '1'};
  char magic[8];
  std::uint64_t data_number, table_number;
  std::uint64_t part_number;  ///< of the file with plain bytes, of a compressed image
  std::uint64_t chunks;
  std::uint64_t reserved[3];
};
static_assert(sizeof(MapHeader) == 64);

/// States of chunks, as they are in a map.
enum class ChunkState : unsigned char {
  missing,     ///< the image does not have all of it
  there,       ///< written or verified since the machine was started
  unverified,  ///< written before the machine was started: verify the checksum before use
  completing,  ///< a process stores it, or was killed meanwhile
};

inline constexpr auto kMissing = static_cast<unsigned char>(ChunkState::missing);
inline constexpr auto kThere = static_cast<unsigned char>(ChunkState::there);
inline constexpr auto kUnverified = static_cast<unsigned char>(ChunkState::unverified);
inline constexpr auto kCompleting = static_cast<unsigned char>(ChunkState::completing);

}  // namespace lmdbio::cache
