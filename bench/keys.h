// The keys of the benchmark databases, and keys that no database contains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "bench/common.h"

namespace lmdbio::bench {

enum class KeyKind : std::uint32_t {
  kImage,   // "00000042_n332598.JPEG" with its NUL, as image converters write; in key order
  kRandom,  // 16 random bytes, not in key order
  kPrefix,  // "imagenet/train/00000042.jpg": a long common prefix, in key order
};

constexpr std::size_t kKeyRoom = 32;  // no key is longer

inline const char* key_kind_name(KeyKind kind) {
  switch (kind) {
    case KeyKind::kImage:
      return "image";
    case KeyKind::kRandom:
      return "random";
    case KeyKind::kPrefix:
      return "prefix";
  }
  return "?";
}

/// Writes key `i` (below 10^8) to `out` (kKeyRoom bytes) and returns its length.  An absent key is a
/// neighbour of key `i` that is not in the database.
inline std::size_t make_key(KeyKind kind, std::uint64_t i, bool absent, char* out) {
  char text[64];
  int n = 0;
  switch (kind) {
    case KeyKind::kImage:
      n = std::snprintf(text, sizeof text, "%08llu_n%06llu.JPE%c", static_cast<unsigned long long>(i),
                        static_cast<unsigned long long>(i * 7919 % 1000000), absent ? 'X' : 'G') +
          1;
      break;
    case KeyKind::kRandom: {
      const std::uint64_t a = mix(2 * i + (absent ? 0x5555555500000001u : 0)), b = mix(a);
      std::memcpy(text, &a, 8);
      std::memcpy(text + 8, &b, 8);
      n = 16;
      break;
    }
    case KeyKind::kPrefix:
      n = std::snprintf(text, sizeof text, "imagenet/train/%08llu.jpg%s", static_cast<unsigned long long>(i),
                        absent ? "x" : "");
      break;
  }
  std::memcpy(out, text, static_cast<std::size_t>(n));
  return static_cast<std::size_t>(n);
}

}  // namespace lmdbio::bench
