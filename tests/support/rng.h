// A small random generator whose numbers are the same with every library and compiler.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lmdbio::test {

class Rng {
 public:
  explicit Rng(std::uint64_t seed) noexcept : state_(seed * 0x9E3779B97F4A7C15u + 0xD1B54A32D192ED03u) {}
  std::uint64_t next() noexcept {  // splitmix64
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  /// Below `n`; 0 when n is 0.
  std::uint32_t below(std::size_t n) noexcept {
    return n == 0 ? 0 : static_cast<std::uint32_t>((next() >> 32) * static_cast<std::uint64_t>(n) >> 32);
  }
  /// From `low` to `high`, both included.
  std::uint32_t between(std::uint32_t low, std::uint32_t high) noexcept {
    return low + below(static_cast<std::size_t>(high - low) + 1);
  }
  bool percent(unsigned p) noexcept { return below(100) < p; }

 private:
  std::uint64_t state_;
};

}  // namespace lmdbio::test
