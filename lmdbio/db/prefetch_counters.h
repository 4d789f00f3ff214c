// What prefetching (txn_prefetch.h) came to, for a transaction's counters.
#pragma once

#include <cstdint>

namespace lmdbio::db {

struct PrefetchCounters {
  std::uint64_t keys = 0;    ///< asked for
  std::uint64_t found = 0;   ///< with values in pages of their own
  std::uint64_t cached = 0;  ///< of these, in the page cache already
  std::uint64_t arena = 0;   ///< read into private memory
  std::uint64_t hits = 0;    ///< lookups answered by what was prefetched
  std::uint64_t waits = 0;   ///< of these, not there yet
  std::uint64_t dropped =
      0;  ///< lookups of such keys that were left to the mapping: a read failed, memory was short
  std::uint64_t bytes = 0, requests = 0;  ///< read, tree pages included

  void add(const PrefetchCounters& c) noexcept {
    keys += c.keys;
    found += c.found;
    cached += c.cached;
    arena += c.arena;
    hits += c.hits;
    waits += c.waits;
    dropped += c.dropped;
    bytes += c.bytes;
    requests += c.requests;
  }
};

}  // namespace lmdbio::db
