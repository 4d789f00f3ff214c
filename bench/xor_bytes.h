// The one loop that stands for "the program reads the value", compiled once and used by every backend.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lmdbio::bench {

/// XOR of all bytes, eight at a time.
std::uint64_t xor_bytes(const void* data, std::size_t size) noexcept;

}  // namespace lmdbio::bench
