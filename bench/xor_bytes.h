// The loop with which all benchmarks read values, compiled once for all backends.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lmdbio::bench {

/// Returns the XOR of all bytes, eight at a time.
std::uint64_t xor_bytes(const void* data, std::size_t size) noexcept;

}  // namespace lmdbio::bench
