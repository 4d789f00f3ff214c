// Bytes of several kinds, for tests of compression.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <vector>

#include "tests/support/rng.h"

namespace lmdbio::test {

enum class ChunkData {
  zeros,
  noise,   ///< cannot be compressed
  counts,  ///< small int16, most of them 0
  floats,  ///< a smooth field of float32
  rows,    ///< rows of 300 bytes, each similar to the row before
  words    ///< text of few words
};
inline constexpr ChunkData kAllChunkData[] = {ChunkData::zeros,  ChunkData::noise, ChunkData::counts,
                                              ChunkData::floats, ChunkData::rows,  ChunkData::words};

inline std::vector<std::byte> chunk_data(ChunkData kind, std::size_t size, std::uint64_t seed) {
  constexpr std::size_t kRow = 300;
  constexpr const char* kWords[] = {"carbon ", "oxygen ", "bond ", "ring ", "nitrogen ", "\n"};
  std::vector<std::byte> out(size);
  Rng rng(seed);
  const char* word = "";
  for (std::size_t i = 0; i < size; ++i) {
    switch (kind) {
      case ChunkData::zeros:
        break;
      case ChunkData::noise:
        out[i] = static_cast<std::byte>(rng.next() >> 56);
        break;
      case ChunkData::counts:
        if (i % 2 == 0 && rng.percent(30)) out[i] = static_cast<std::byte>(rng.below(1 + rng.below(20)));
        break;
      case ChunkData::floats: {
        const float value = 300 + 20 * std::sin(static_cast<float>(i / 4) / 500);
        out[i] = reinterpret_cast<const std::byte*>(&value)[i % 4];
        break;
      }
      case ChunkData::rows:
        out[i] = i < kRow ? static_cast<std::byte>(rng.next() >> 56)
                          : static_cast<std::byte>(std::to_integer<unsigned>(out[i - kRow]) + rng.below(3));
        break;
      case ChunkData::words:
        if (*word == '\0') word = kWords[rng.below(std::size(kWords))];
        out[i] = static_cast<std::byte>(*word++);
        break;
    }
  }
  return out;
}

}  // namespace lmdbio::test
