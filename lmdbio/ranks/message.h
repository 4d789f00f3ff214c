// Messages of the ranks of a stream.
//
// For each round, a reader sends two messages to each rank that uses records of its part: a header with the
// sizes of these records, then their bytes.  At the end of a stream, each rank sends one end
// message to each reader, when it needs no more records.  Each reader sends one to each rank, with the
// number of messages that it has sent to this rank.  It sends it when it has received the rank's message, or
// when it will read nothing more.  So both sides know which messages are still to come.  Every end
// message has a receive, in whatever sequence the ranks leave.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lmdbio/base/mix.h"

namespace lmdbio::ranks {

/// Channels of a stream.
enum Channel : unsigned {
  kHeaders,
  kBytes,
  kEndToReader,    ///< empty
  kEndFromReader,  ///< number of headers that were sent to this rank
  kTurns,          ///< between readers: see turns.h
  kChannels
};

struct MessageHeader {
  std::uint32_t records;  ///< number of sizes that follow
  std::uint32_t round;    ///< its low bits; sender and receiver must be at the same round
  std::uint64_t bytes;    ///< of all keys and values together; they are in the next message
  std::uint64_t hash;     ///< ordinals_hash() of the records; ranks may have different functions
};

/// Adds the next ordinal of a message to the hash of those before it.
inline std::uint64_t ordinals_hash(std::uint64_t hash, std::uint64_t ordinal) noexcept {
  return mix(hash ^ ordinal);
}

struct RecordSizes {
  static constexpr std::uint32_t kFailed = UINT32_MAX;
  std::uint32_t key;  ///< kFailed: the reader could not read it; the receiver reads it itself
  std::uint32_t value;
};

inline std::size_t header_bytes(std::size_t records) noexcept {
  return sizeof(MessageHeader) + records * sizeof(RecordSizes);
}

}  // namespace lmdbio::ranks
