#include "lmdbio/ranks/plan.h"

#include <algorithm>
#include <cmath>

namespace lmdbio::ranks {

namespace {

constexpr double kPageBytes = 4096;
/// A request takes as long as so many bytes: with a latency of 1 ms, 32 requests in flight, and 1 GB/s.
constexpr double kRequestBytes = 32 << 10;
/// What is so close to each other, bytes, is read in one request (records/fetch.cc).
constexpr double kGapBytes = 64 << 10;
/// A byte over the network takes as long as this share of one from the file system.
constexpr double kNetworkShare = 1.0 / 8;
/// A reader computes each element of the order (about 100 ns), which takes as long as so many bytes at 1
/// GB/s.
constexpr double kElementBytes = 100;
/// Of an order without end.
constexpr std::uint64_t kMostEpochs = 8;

}  // namespace

ScatterCosts scatter_costs(const ScatterFacts& f) noexcept {
  ScatterCosts costs;
  if (f.records == 0 || f.elements == 0) return costs;
  const auto record = static_cast<double>(std::max<std::uint64_t>(f.record_bytes, 1));
  const auto elements = static_cast<double>(f.elements);
  const double file = static_cast<double>(f.records) * record;
  const double read = std::max(record, kPageBytes);  // at least a page for each record
  const auto records = static_cast<double>(f.records);
  const double in_a_place = std::max(read / record, 1.0);  // records
  const double places = records / in_a_place;
  const double nodes = std::max<std::uint32_t>(f.nodes, 1);
  const auto room = static_cast<double>(f.room);
  // The share of places that are still unread after `n` records were drawn at random, `times` times.
  const auto left = [&](double n, double times) {
    return std::pow(1 - std::min(n / records, 1.0), in_a_place * times);
  };
  // Of a set of so many records, drawn together: those that are close to each other come in one request, with
  // what is between them.
  const auto is_dense = [&](std::uint64_t set) { return file <= kGapBytes * static_cast<double>(set); };
  // An epoch in sets of so many records, where pages are not kept from set to set.
  const auto in_sets = [&](std::uint64_t set) {
    const double size = std::clamp(static_cast<double>(set), 1.0, elements);
    const double exact = places * (1 - left(size, 1)) * (read + kRequestBytes);
    return elements / size * (is_dense(set) ? std::min(exact, file) : exact);
  };
  // All epochs, where each of `parts` nodes keeps what it has read, and draws so many records in an epoch.
  const std::uint64_t epochs = f.epochs == 0 ? kMostEpochs : std::min(f.epochs, kMostEpochs);
  const auto kept = [&](double parts, double drawn, std::uint64_t set) {
    const double exact =
        parts * places * (1 - left(drawn, static_cast<double>(epochs))) * (read + kRequestBytes);
    return is_dense(set) ? std::min(exact, parts * file) : exact;
  };
  costs.alone = room >= file ? kept(nodes, elements / nodes, f.fetch_records)
                             : static_cast<double>(epochs) * in_sets(f.fetch_records);
  costs.dealt = room >= file / nodes ? kept(1, elements, f.round_records)
                                     : static_cast<double>(epochs) * in_sets(f.round_records);
  const double sent = static_cast<double>(epochs) * elements * record * (nodes - 1) / nodes;
  const double computed = static_cast<double>(epochs) * elements * std::max<std::uint32_t>(f.readers, 1);
  costs.dealt += sent * kNetworkShare + computed * kElementBytes;
  return costs;
}

}  // namespace lmdbio::ranks
