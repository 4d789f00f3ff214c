// Counters of the prefetches of a transaction (txn_prefetch.h).
#pragma once

#include <cstdint>

#include "lmdbio/base/counter.h"

namespace lmdbio::tree {

struct PrefetchCounters {
  std::uint64_t keys = 0;    ///< keys requested
  std::uint64_t found = 0;   ///< keys with values in overflow pages
  std::uint64_t cached = 0;  ///< values of `found` that were in the page cache already
  std::uint64_t arena = 0;   ///< values read into private memory
  std::uint64_t hits = 0;    ///< lookups answered from prefetched keys
  std::uint64_t waits = 0;   ///< lookups that waited for a prefetch in flight
  /// Lookups of prefetched keys that fell back to page faults: a read failed, or memory was short.
  std::uint64_t dropped = 0;
  std::uint64_t bytes = 0, requests = 0;  ///< bytes and requests of reads, including tree pages

  void add(const PrefetchCounters& c) noexcept;
};

/// All counters, with their names in reports (docs/operations.md).
inline constexpr CounterField<PrefetchCounters, std::uint64_t> kPrefetchCounters[] = {
    {"keys", &PrefetchCounters::keys},       {"found", &PrefetchCounters::found},
    {"cached", &PrefetchCounters::cached},   {"arena", &PrefetchCounters::arena},
    {"read", &PrefetchCounters::bytes},      {"requests", &PrefetchCounters::requests},
    {"hits", &PrefetchCounters::hits},       {"waits", &PrefetchCounters::waits},
    {"dropped", &PrefetchCounters::dropped},
};

inline void PrefetchCounters::add(const PrefetchCounters& c) noexcept {
  add_counters(*this, c, kPrefetchCounters);
}

}  // namespace lmdbio::tree
