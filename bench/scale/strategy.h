// How the ranks of a job get their records: the choices of run_scale, and the paper's steps as named
// choices.
//
// docs/strategies.md says what each of them does.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bench/scale/sequence.h"

namespace lmdbio::bench {

struct Strategy {
  enum class Readers : unsigned char { every_rank, some_of_node };
  enum class Access : unsigned char {
    mapped,  ///< page faults of a mapping of the file
    direct   ///< requests past the page cache
  };
  enum class Finding : unsigned char {
    walk,       ///< each reader walks over all records
    handed_on,  ///< one reader walks, and sends the others the places of theirs
    guessed,    ///< leaf pages are taken for equally full, which is checked
    index       ///< the record index of LMDBIO
  };
  enum class Exchange : unsigned char { none, redistributed };
  enum class Overlap : unsigned char { none, ahead };
  enum class Later : unsigned char { page_cache, node_homes };

  Readers readers = Readers::every_rank;
  unsigned readers_per_node = 1;  ///< of some_of_node
  Access access = Access::mapped;
  Finding finding = Finding::walk;
  std::uint64_t request_bytes = 0;  ///< that a reader fetches at a time, at least; 0: a batch
  unsigned group = 0;               ///< readers that take turns; 0: none do
  Exchange exchange = Exchange::none;
  Overlap overlap = Overlap::none;
  Later later = Later::page_cache;
  friend bool operator==(const Strategy&, const Strategy&) = default;
};

/// Names and strategies, in the paper's order; LMM-DM and LMM-DIO are siblings.
const std::vector<std::pair<std::string, Strategy>>& presets();

/// Why there is no such strategy for this order, a sentence; empty: there is.
std::string refusal(const Strategy& strategy, Order order);

/// Real LMDB by itself does it: nothing of LMDBIO is in the process.
inline bool is_stock(const Strategy& s) { return s == Strategy{}; }
/// The library does it: lmdbio_reader_open, or lmdbio/mpi.h.
inline bool is_of_library(const Strategy& s) { return s.finding == Strategy::Finding::index; }

}  // namespace lmdbio::bench
