// A mixing function for 64-bit numbers: every bit of the result depends on every bit of the argument.
#pragma once

#include <cstdint>

namespace lmdbio {

/// One step of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA
/// 2014) with Vigna's constants: https://prng.di.unimi.it/splitmix64.c (public domain).  It must not change,
/// since the orders of readers depend on it (docs/format.md).
constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace lmdbio
