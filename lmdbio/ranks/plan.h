// Decides whether the ranks of a job read the records of a scattered order for each other.  Pure functions.
#pragma once

#include <cstdint>

namespace lmdbio::ranks {

/// Facts about a scattered order (a shuffle of all records, a list, a function).
struct ScatterFacts {
  std::uint64_t records = 0;        ///< records of the database
  std::uint64_t record_bytes = 0;   ///< bytes of a record and its part of the pages, approximately
  std::uint64_t elements = 0;       ///< elements of an epoch of the order
  std::uint64_t epochs = 0;         ///< number of epochs; 0 if the order has no end
  std::uint64_t round_records = 0;  ///< records that all readers together read at a time
  std::uint64_t fetch_records = 0;  ///< records that a rank reads at a time if it reads for itself
  std::uint32_t nodes = 1, readers = 1;
  std::uint64_t room = 0;  ///< bytes that each node's page cache has for pages of the file
};

/// Costs of all epochs, or of the first epochs if there are many.  The unit is the number of bytes that the
/// file system could deliver in the same time.
struct ScatterCosts {
  double alone = 0;      ///< each rank reads its own records
  double exchanged = 0;  ///< the same rank always reads a record, and sends it to its user
};

/// Estimates the costs for records that are drawn at random.  Records that are drawn together and are in one
/// page cost one read.  Records in the page cache of the node cost nothing.  The costs of requests, messages
/// and computing the order (plan.cc) are typical of a parallel file system with a fast network.
ScatterCosts scatter_costs(const ScatterFacts& facts) noexcept;

/// Returns whether reading for each other costs less than reading alone.
inline bool exchanges_scattered(const ScatterFacts& facts) noexcept {
  const ScatterCosts costs = scatter_costs(facts);
  return costs.exchanged < costs.alone;
}

}  // namespace lmdbio::ranks
