// Messages of the ranks of a stream.
//
// For each round, a reader sends two messages to each rank that uses records of its part.  The first is a
// header with the sizes of these records, and the second contains their bytes.  Rank and reader both know
// from the assignment which messages follow.
//
// A rank that leaves before the end sends an end message to each reader.  The reader answers with the number
// of messages that it has sent to this rank.  A reader that leaves before the end sends this number to each
// rank.  So both sides know how many messages are still to arrive.  The ranks may leave in any sequence, and
// expect end messages until no rank has anything under way (Departure).
#pragma once

#include <cstddef>
#include <cstdint>

#include "lmdbio/base/mix.h"

namespace lmdbio::ranks {

/// Channels of a stream.
enum Channel : unsigned {
  kHeaders,
  kBytes,
  kEndToReader,    ///< has no content
  kEndFromReader,  ///< contains the number of headers that were sent to the rank
  kDeparture,      ///< has no content; see departure.h
  kTurns,          ///< between readers; see turns.h
  kChannels
};

struct MessageHeader {
  std::uint32_t records;  ///< number of sizes that follow
  std::uint32_t round;    ///< low bits of the round's number, which must be the same for sender and receiver
  std::uint64_t bytes;    ///< bytes of all keys and values, which are in the next message
  std::uint64_t hash;     ///< ordinals_hash() of the records, because ranks may have different functions
};

/// Adds an ordinal to the hash of a message's ordinals.  `hash`: hash of the ordinals before it; 0 at first.
inline std::uint64_t ordinals_hash(std::uint64_t hash, std::uint64_t ordinal) noexcept {
  return mix(hash ^ ordinal);
}

struct RecordSizes {
  static constexpr std::uint32_t kFailed = UINT32_MAX;
  std::uint32_t key;  ///< size; kFailed: the reader could not read the record, and the receiver reads it
  std::uint32_t value;
};

inline std::size_t header_bytes(std::size_t records) noexcept {
  return sizeof(MessageHeader) + records * sizeof(RecordSizes);
}

}  // namespace lmdbio::ranks
