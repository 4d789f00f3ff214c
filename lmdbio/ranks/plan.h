// Whether the ranks of a job read the records of a scattered order for each other: pure functions.
#pragma once

#include <cstdint>

namespace lmdbio::ranks {

/// What is known of a scattered order (a shuffle of all records, a list, a function).
struct ScatterFacts {
  std::uint64_t records = 0;        ///< of the database
  std::uint64_t record_bytes = 0;   ///< of one, with its share of the pages, about
  std::uint64_t elements = 0;       ///< of an epoch of the order
  std::uint64_t epochs = 0;         ///< 0: without end
  std::uint64_t round_records = 0;  ///< that all readers together read at a time
  std::uint64_t fetch_records = 0;  ///< that a rank reads at a time that reads for itself
  std::uint32_t nodes = 1, readers = 1;
  std::uint64_t room = 0;  ///< for pages of the file in the page cache of each node, bytes
};

/// Costs of the epochs, of the first ones if there are many, in bytes that the file system could give
/// meanwhile.
struct ScatterCosts {
  double alone = 0;  ///< each rank reads its records
  double dealt = 0;  ///< each record is read by one rank, always the same, and sent to the rank that uses it
};

/// An estimate: records are drawn at random.  Those that are drawn together and lie in one page cost one
/// read. Those that a node has in its page cache cost nothing.  What a request, the network and the
/// computation of an order cost (plan.cc) stands for a parallel file system behind a fast network.
ScatterCosts scatter_costs(const ScatterFacts& facts) noexcept;

/// Dealing costs less.
inline bool deals_scattered(const ScatterFacts& facts) noexcept {
  const ScatterCosts costs = scatter_costs(facts);
  return costs.dealt < costs.alone;
}

}  // namespace lmdbio::ranks
