#include "bench/xor_bytes.h"

#include <cstring>

namespace lmdbio::bench {

std::uint64_t xor_bytes(const void* data, std::size_t size) noexcept {
  const auto* p = static_cast<const unsigned char*>(data);
  std::uint64_t lane[8] = {};
  for (; size >= sizeof lane; p += sizeof lane, size -= sizeof lane) {
    std::uint64_t word[8];
    std::memcpy(word, p, sizeof word);
    for (int i = 0; i < 8; ++i) lane[i] ^= word[i];
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t l : lane) sum ^= l;
  for (; size > 0; ++p, --size) sum ^= static_cast<std::uint64_t>(*p) << (8 * (size % 8));
  return sum;
}

}  // namespace lmdbio::bench
