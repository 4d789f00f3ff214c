// Decides whether the ranks of a job read the records of a scattered order for each other.  Pure functions.
#pragma once

#include <cstdint>

namespace lmdbio::ranks {

/// Facts about a scattered order (a shuffle of all records, a list, a function).
struct ScatterFacts {
  std::uint64_t records = 0;        ///< of the database
  std::uint64_t record_bytes = 0;   ///< bytes of a record with its share of the pages, approximately
  std::uint64_t elements = 0;       ///< in an epoch of the order
  std::uint64_t epochs = 0;         ///< 0: no end
  std::uint64_t round_records = 0;  ///< records that all readers together read at a time
  std::uint64_t fetch_records = 0;  ///< records that a rank reads at a time if it reads for itself
  std::uint32_t nodes = 1, readers = 1;
  std::uint64_t room = 0;  ///< bytes for pages of the file, in the page cache of each node
};

/// Costs of all epochs, or of the first ones if there are many.  The unit is bytes that the file system
/// could deliver in the same time.
struct ScatterCosts {
  double alone = 0;      ///< each rank reads its own records
  double exchanged = 0;  ///< always the same rank reads a record and sends it to the rank that uses it
};

/// Estimates the costs for records that are drawn at random.  Records that are drawn together and lie in one
/// page cost one read.  Records in the page cache of the node cost nothing.  The costs of requests, network
/// and computing the order (plan.cc) are those of a parallel file system behind a fast network.
ScatterCosts scatter_costs(const ScatterFacts& facts) noexcept;

/// Returns whether reading for each other costs less than reading alone.
inline bool exchanges_scattered(const ScatterFacts& facts) noexcept {
  const ScatterCosts costs = scatter_costs(facts);
  return costs.exchanged < costs.alone;
}

}  // namespace lmdbio::ranks
