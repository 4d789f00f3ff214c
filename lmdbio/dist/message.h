// What ranks send each other.
//
// A reader sends to a rank, for each round with records of that rank, a header with the sizes of its records,
// and their bytes.  Besides, each rank sends one farewell to each reader, when it wants nothing more, and
// each reader one to each rank, which says how many rounds it has begun to send: when it has heard the rank's
// farewell, or when it will read nothing more.  So both know which messages are still to come, and each
// farewell finds somebody who expects it, in whatever order ranks leave.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lmdbio::dist {

/// Channels of a stream.
enum Channel : unsigned {
  kHeaders,
  kBytes,
  kFarewellToReader,    ///< empty
  kFarewellFromReader,  ///< the number of the first round that it has not begun to send
  kTurns,               ///< from reader to reader: see turns.h
  kChannels
};

struct MessageHeader {
  std::uint32_t records;  ///< sizes follow
  std::uint32_t round;    ///< its low bits: both sides are at the same one
  std::uint64_t bytes;    ///< of all records' keys and values together, which the other message has
};

struct RecordSizes {
  static constexpr std::uint32_t kFailed = UINT32_MAX;
  std::uint32_t key;  ///< kFailed: the reader could not read it; the rank tries by itself
  std::uint32_t value;
};

inline std::size_t header_bytes(std::size_t records) noexcept {
  return sizeof(MessageHeader) + records * sizeof(RecordSizes);
}

}  // namespace lmdbio::dist
