// Measures the constants of a platform (bench/scale/simulation/README.md), each by itself.  It does not
// run the training loop.
//
//   measure_constants cpu DATABASE    what stock LMDB, page faults and copies take, of a database that is in
//                                     the page cache
//   measure_constants file FILE       what requests take that the file system of FILE answers, one at a time
//
// Prints one line of JSON.  Seconds; "bytes_s": bytes a second.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "bench/raw_file.h"
#include "bench/scale/simulation/measured_file.h"
#include "bench/stats.h"
#include "bench/stock_lmdb.h"

namespace lmdbio::bench {
namespace {

// ---- CPU

double step_of_a_cursor(const std::string& database) {
  StockReader reader(database);
  const std::uint64_t records = reader.records();
  std::vector<double> walks;
  for (int round = 0; round < 7; ++round) {
    const double s = seconds_of([&] {
      for (std::uint64_t o = 0; o < records; ++o) (void)reader.first_or_next(o == 0);
    });
    if (round > 0) walks.push_back(s / static_cast<double>(records));  // the first walk has page faults
  }
  return median(walks);
}

double minor_fault(const OpenFile& file) {
  std::vector<double> each;
  for (int round = 0; round < 7; ++round) {
    const Mapping mapping(file.fd, file.bytes);
    std::uint64_t faults = 0;
    const double s = seconds_of([&] {
      for (std::uint64_t at = 0; at < file.bytes; at += kFaultAround, ++faults) mapping.touch(at);
    });
    each.push_back(s / static_cast<double>(faults));
  }
  return median(each);
}

/// Copies into memory that is used again, as a program's batch is.
double copied_bytes_a_second(const OpenFile& file) {
  constexpr std::size_t kValue = std::size_t{110} << 10, kBatch = 64 * kValue;
  const Mapping mapping(file.fd, file.bytes);
  char* const batch = make_buffers(kBatch);
  for (std::uint64_t at = 0; at < file.bytes; at += kPage) mapping.touch(at);
  std::vector<double> rates;
  for (int round = 0; round < 7; ++round) {
    std::uint64_t copied = 0;
    const double s = seconds_of([&] {
      for (; copied + kValue <= file.bytes; copied += kValue)
        std::memcpy(batch + copied % kBatch, mapping.bytes() + copied, kValue);
    });
    rates.push_back(static_cast<double>(copied) / s);
  }
  return median(rates);
}

nlohmann::json cpu(const std::string& database) {
  const OpenFile file(database + "/data.mdb");
  if (file.bytes < (std::uint64_t{32} << 20)) die("%s: needs at least 32 MiB", database.c_str());
  read_all(file);
  return {{"next_s", step_of_a_cursor(database)},
          {"fault_s", minor_fault(file)},
          {"copy_bytes_s", copied_bytes_a_second(file)}};
}

// ---- requests

double direct_read(const RawFile& raw, std::uint64_t offset, std::size_t bytes, char* to) {
  return seconds_of([&] {
    if (::pread(raw.fd, to, bytes, static_cast<off_t>(offset)) != static_cast<ssize_t>(bytes))
      die("pread: %s", std::strerror(errno));
  });
}

nlohmann::json requests_one_at_a_time(const RawFile& raw) {
  constexpr std::size_t kSizes[] = {4096, 65536, 262144, 1048576}, kMost = 60;
  nlohmann::json by_size = nlohmann::json::object();
  char* const to = make_buffers(kSizes[3]);
  double spread = 0;
  for (const std::size_t size : kSizes) {
    std::vector<double> times;
    for (const std::uint64_t at : places(raw.bytes, kSizes[3], size)) {
      times.push_back(direct_read(raw, at, size, to));
      if (times.size() == kMost) break;
    }
    by_size[std::to_string(size)] = median(times);
    if (size != kSizes[0]) continue;
    std::vector<double> from_median;
    for (const double t : times) from_median.push_back(std::abs(std::log(t / median(times))));
    spread = 1.4826 * median(from_median);  // the standard deviation of a normal distribution
  }
  return {{"seconds_by_bytes", by_size}, {"latency_spread", spread}};
}

nlohmann::json requests(const std::string& path) {
  const RawFile raw = open_raw(path);
  if (raw.bytes < (std::uint64_t{64} << 20)) die("%s: needs at least 64 MiB", path.c_str());
  if (!raw.direct) die("%s: direct requests are not possible", path.c_str());
  return requests_one_at_a_time(raw);
}

int run(int argc, char** argv) {
  const std::string what = argc == 3 ? argv[1] : "";
  if (what == "cpu")
    std::puts(cpu(argv[2]).dump().c_str());
  else if (what == "file")
    std::puts(requests(argv[2]).dump().c_str());
  else
    die("usage: measure_constants cpu DATABASE | file FILE");
  return 0;
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) { return lmdbio::bench::run(argc, argv); }
