// Strategies by which the ranks of a job get their records: the options of run_scale, and the paper's steps
// as presets.
//
// docs/strategies.md describes each strategy.
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
    mapped,  ///< by page faults of a mapping of the file
    direct   ///< by direct requests, without the page cache
  };
  enum class Finding : unsigned char {
    walk,       ///< each reader walks over all records
    handed_on,  ///< one reader walks, and sends the other readers the places of their records
    guessed,    ///< readers guess that leaf pages have equally many records, and check that
    index       ///< the record index of LMDBIO
  };
  enum class Exchange : unsigned char { none, redistributed };
  enum class Overlap : unsigned char { none, ahead };
  enum class Later : unsigned char { page_cache, node_homes };

  Readers readers = Readers::every_rank;
  unsigned readers_per_node = 1;  ///< for some_of_node
  Access access = Access::mapped;
  Finding finding = Finding::walk;
  std::uint64_t request_bytes = 0;  ///< minimum that a reader fetches at a time; 0: a batch
  unsigned group = 0;               ///< number of readers that take turns; 0: no turns
  Exchange exchange = Exchange::none;
  Overlap overlap = Overlap::none;
  Later later = Later::page_cache;
  friend bool operator==(const Strategy&, const Strategy&) = default;
};

/// Returns the names and strategies in the paper's order.  LMM-DM and LMM-DIO are alternatives.
const std::vector<std::pair<std::string, Strategy>>& presets();

/// Returns a sentence that says why the strategy does not exist for this order, or an empty string if it
/// exists.
std::string refusal(const Strategy& strategy, Order order);

/// Returns whether the real LMDB alone implements the strategy, without LMDBIO in the process.
inline bool is_stock(const Strategy& s) { return s == Strategy{}; }
/// Returns whether LMDBIO implements the strategy (lmdbio_reader_open, or lmdbio/mpi.h).
inline bool is_of_library(const Strategy& s) { return s.finding == Strategy::Finding::index; }

}  // namespace lmdbio::bench
