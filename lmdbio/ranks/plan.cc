#include "lmdbio/ranks/plan.h"

#include <algorithm>
#include <cmath>

namespace lmdbio::ranks {

namespace {

constexpr double kPageBytes = 4096;
/// Cost of a request, in bytes.  Assumes a latency of 1 ms, 32 requests in flight, and 1 GB/s.
constexpr double kRequestBytes = 32 << 10;
/// Records at most this many bytes apart are read in one request (records/fetch.cc).
constexpr double kGapBytes = 64 << 10;
/// Cost of a byte that is sent over the network, relative to a byte that is read from the file system.
constexpr double kNetworkShare = 1.0 / 8;
/// Cost of computing one element of the order, in bytes: about 100 ns at 1 GB/s.  Each reader computes all
/// elements.
constexpr double kElementBytes = 100;
/// An order without an end counts as this many epochs, and any other order as at most this many.
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
  const double per_page = std::max(read / record, 1.0);  // records in one page; 1 if a record is larger
  const double pages = records / per_page;
  const double nodes = std::max<std::uint32_t>(f.nodes, 1);
  const auto room = static_cast<double>(f.room);
  // Returns the share of pages that are still unread after `times` draws of `n` random records each.
  const auto left = [&](double n, double times) {
    return std::pow(1 - std::min(n / records, 1.0), per_page * times);
  };
  // Returns whether `set` records that are read together are so close that a request reads neighbours
  // together with the gap between them.
  const auto is_dense = [&](std::uint64_t set) { return file <= kGapBytes * static_cast<double>(set); };
  // Returns the cost of an epoch that is read in sets of `set` records.  No pages are kept between sets.
  const auto in_sets = [&](std::uint64_t set) {
    const double size = std::clamp(static_cast<double>(set), 1.0, elements);
    const double exact = pages * (1 - left(size, 1)) * (read + kRequestBytes);
    return elements / size * (is_dense(set) ? std::min(exact, file) : exact);
  };
  // Returns the cost of all epochs.  Each of `parts` nodes draws `drawn` records in an epoch, and keeps what
  // it has read.
  const std::uint64_t epochs = f.epochs == 0 ? kMostEpochs : std::min(f.epochs, kMostEpochs);
  const auto kept = [&](double parts, double drawn, std::uint64_t set) {
    const double exact =
        parts * pages * (1 - left(drawn, static_cast<double>(epochs))) * (read + kRequestBytes);
    return is_dense(set) ? std::min(exact, parts * file) : exact;
  };
  costs.alone = room >= file ? kept(nodes, elements / nodes, f.fetch_records)
                             : static_cast<double>(epochs) * in_sets(f.fetch_records);
  costs.exchanged = room >= file / nodes ? kept(1, elements, f.round_records)
                                         : static_cast<double>(epochs) * in_sets(f.round_records);
  const double sent = static_cast<double>(epochs) * elements * record * (nodes - 1) / nodes;
  const double computed = static_cast<double>(epochs) * elements * std::max<std::uint32_t>(f.readers, 1);
  costs.exchanged += sent * kNetworkShare + computed * kElementBytes;
  return costs;
}

}  // namespace lmdbio::ranks
