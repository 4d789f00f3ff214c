#include "lmdbio/dist/plan.h"

#include <algorithm>
#include <cmath>

namespace lmdbio::dist {

namespace {

constexpr double kPageBytes = 4096;
/// A request takes as long as so many bytes: with a latency of 1 ms, 32 requests in flight, and 1 GB/s.
constexpr double kRequestBytes = 32 << 10;
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
  // Reads of an epoch in sets of so many records, where pages are not kept from set to set.
  const auto in_sets = [&](std::uint64_t set) {
    const double size = std::clamp(static_cast<double>(set), 1.0, elements);
    return elements / size * places * (1 - left(size, 1));
  };
  const std::uint64_t epochs = f.epochs == 0 ? kMostEpochs : std::min(f.epochs, kMostEpochs);
  double alone = 0, dealt = 0;  // reads
  for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
    const auto before = static_cast<double>(epoch);
    // A node gets to know the whole file, by what its ranks draw; or each home its own part, by what all
    // draw.
    const auto first_read = [&](double n) { return places * (left(n, before) - left(n, before + 1)); };
    alone += room >= file ? nodes * first_read(elements / nodes) : in_sets(f.fetch_records);
    dealt += room >= file / nodes ? first_read(elements) : in_sets(f.round_records);
  }
  const double sent = static_cast<double>(epochs) * elements * record * (nodes - 1) / nodes;
  costs.alone = alone * (read + kRequestBytes);
  const double computed = static_cast<double>(epochs) * elements * std::max<std::uint32_t>(f.readers, 1);
  costs.dealt = dealt * (read + kRequestBytes) + sent * kNetworkShare + computed * kElementBytes;
  return costs;
}

}  // namespace lmdbio::dist
