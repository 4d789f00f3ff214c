// What ranks send each other.
//
// A reader sends to a rank, for each round with records of that rank, a header with the sizes of its records,
// and their bytes.  Besides, each rank sends one farewell to each reader, when it wants nothing more, and
// each reader one to each rank, which says how many messages it has sent to it: when it has heard the rank's
// farewell, or when it will read nothing more.  So both know which messages are still to come, and each
// farewell finds somebody who expects it, in whatever order ranks leave.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lmdbio/base/mix.h"

namespace lmdbio::ranks {

/// Channels of a stream.
enum Channel : unsigned {
  kHeaders,
  kBytes,
  kFarewellToReader,    ///< empty
  kFarewellFromReader,  ///< how many headers it has sent to this rank
  kTurns,               ///< from reader to reader: see turns.h
  kChannels
};

struct MessageHeader {
  std::uint32_t records;  ///< sizes follow
  std::uint32_t round;    ///< its low bits: both sides are at the same one
  std::uint64_t bytes;    ///< of all records' keys and values together, which the other message has
  std::uint64_t hash;     ///< ordinals_hash() of the records: programs may give ranks different functions
};

/// Of the ordinals of a message's records, in their order.
inline std::uint64_t ordinals_hash(std::uint64_t hash, std::uint64_t ordinal) noexcept {
  return mix(hash ^ ordinal);
}

struct RecordSizes {
  static constexpr std::uint32_t kFailed = UINT32_MAX;
  std::uint32_t key;  ///< kFailed: the reader could not read it; the rank tries by itself
  std::uint32_t value;
};

inline std::size_t header_bytes(std::size_t records) noexcept {
  return sizeof(MessageHeader) + records * sizeof(RecordSizes);
}

}  // namespace lmdbio::ranks
