// Orders of all kinds, for tests.
#pragma once

#include <lmdbio/lmdbio.h>

#include <cstdint>

#include "lmdbio/base/mix.h"
#include "tests/support/rng.h"

namespace lmdbio::test {

/// For LMDBIO_ORDER_FUNCTION: below the context, which is a number; any of them, any number of times.
inline std::uint64_t any_ordinal(void* context, std::uint64_t epoch, std::uint64_t i) {
  return mix(mix(epoch) ^ i) % reinterpret_cast<std::uintptr_t>(context);
}

/// Of a database with so many records, at least 1: any kind but lists and keys.
inline void set_kind(lmdbio_order& o, Rng& rng, std::uint64_t records) {
  constexpr lmdbio_order_kind kKinds[] = {LMDBIO_ORDER_SEQUENTIAL, LMDBIO_ORDER_SEQUENTIAL,
                                          LMDBIO_ORDER_WINDOW_SHUFFLE, LMDBIO_ORDER_SHUFFLE,
                                          LMDBIO_ORDER_FUNCTION};
  o.kind = kKinds[rng.below(5)];
  o.window = rng.between(1, 20);
  o.function = any_ordinal;
  o.function_context = reinterpret_cast<void*>(static_cast<std::uintptr_t>(records));
  if (o.kind == LMDBIO_ORDER_FUNCTION) o.length = rng.between(1, 300);
}

}  // namespace lmdbio::test
