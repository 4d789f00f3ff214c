// Views of bytes, and loads that need no alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace lmdbio {

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

/// Returns the little-endian T at `p`, at any alignment.  The caller has checked the bounds.
template <class T>
inline T load(const std::byte* p) noexcept {
  static_assert(std::is_trivially_copyable_v<T>);
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <class T>
inline T load(Bytes b, std::size_t at) noexcept {
  return load<T>(b.data() + at);
}

}  // namespace lmdbio
