// What a reader sends to a rank for a round: a header with the sizes of its records, and their bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lmdbio::dist {

/// Channels of a stream, in the order of its messages: two for each pair of ranks.
enum Channel : unsigned { kHeaders = 0, kBytes = 1, kChannels = 2 };

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
