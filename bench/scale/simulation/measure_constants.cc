// Measures the constants of a platform (bench/scale/simulation/README.md), each by itself.  It does not
// run the training loop.
//
//   measure_constants cpu DATABASE    what stock LMDB, page faults and copies take, of a database that is in
//                                     the page cache
//   measure_constants file FILE       what requests take that the file system of FILE answers, one at a time,
//                                     and what the processes that wait for a page take
//
// Prints one line of JSON.  Seconds; "bytes_s": bytes a second.
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "bench/raw_file.h"
#include "bench/stats.h"
#include "bench/stock_lmdb.h"

namespace lmdbio::bench {
namespace {

constexpr std::size_t kPage = 4096;
/// A fault maps resident pages around it: fault_around_bytes.
constexpr std::size_t kFaultAround = std::size_t{64} << 10;
/// A fault reads this number of bytes around it: the default of read_ahead_kb.
constexpr std::size_t kReadAround = std::size_t{128} << 10;

double seconds_of(const std::function<void()>& what) {
  const std::uint64_t begin = clock_ns();
  what();
  return static_cast<double>(clock_ns() - begin) * 1e-9;
}

class Mapping {
 public:
  Mapping(int fd, std::uint64_t bytes) : bytes_(bytes) {
    void* const at = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) die_errno("mmap");
    at_ = static_cast<const char*>(at);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { ::munmap(const_cast<char*>(at_), bytes_); }
  const char* bytes() const noexcept { return at_; }
  void touch(std::uint64_t offset) const { (void)*static_cast<const volatile char*>(at_ + offset); }

 private:
  const std::uint64_t bytes_;
  const char* at_ = nullptr;
};

struct OpenFile {
  explicit OpenFile(const std::string& path) : fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd < 0) die_errno(path.c_str());
    const off_t end = ::lseek(fd, 0, SEEK_END);
    if (end < 0) die_errno(path.c_str());
    bytes = static_cast<std::uint64_t>(end);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() { ::close(fd); }
  const int fd;
  std::uint64_t bytes = 0;
};

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

void read_all(const OpenFile& file) {
  std::vector<char> buffer(std::size_t{1} << 20);
  std::uint64_t at = 0;
  for (ssize_t n = 1; n > 0; at += static_cast<std::uint64_t>(n)) {
    n = ::pread(file.fd, buffer.data(), buffer.size(), static_cast<off_t>(at));
    if (n < 0) die_errno("pread");
  }
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

/// Returns offsets in random order, each once.
std::vector<std::uint64_t> places(std::uint64_t file_bytes, std::uint64_t each, std::uint64_t seed) {
  std::vector<std::uint64_t> offsets(file_bytes / each);
  for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = i * each;
  for (std::size_t i = offsets.size(); i > 1; --i) std::swap(offsets[i - 1], offsets[mix(seed + i) % i]);
  return offsets;
}

void drop(const OpenFile& file) {
  if (const int rc = ::posix_fadvise(file.fd, 0, 0, POSIX_FADV_DONTNEED); rc != 0)
    die("posix_fadvise: %s", std::strerror(rc));
}

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

/// Returns the seconds that a fault takes beyond a direct read of the same bytes.
double major_fault(const OpenFile& file, const RawFile& raw) {
  constexpr std::size_t kMost = 60;
  const Mapping mapping(file.fd, file.bytes);
  char* const to = make_buffers(kReadAround);
  std::vector<double> faults, reads;
  // The offsets are far apart: the data read around one does not include the next.
  for (const std::uint64_t at : places(file.bytes - kReadAround, 4 * kReadAround, 7)) {
    faults.push_back(seconds_of([&] { mapping.touch(at + kReadAround / 2); }));
    reads.push_back(direct_read(raw, at, kReadAround, to));
    if (faults.size() == kMost) break;
  }
  return std::max(median(faults) - median(reads), 0.0);
}

/// Several processes wait for the same page.  Returns the time from the wake-up of one to that of the next.
double one_after_the_other(const OpenFile& file) {
  constexpr int kProcesses = 8;
  constexpr std::size_t kRounds = 40;
  struct Shared {
    pthread_barrier_t barrier;
    std::uint64_t at[kProcesses];
  };
  void* const memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) die_errno("mmap");
  auto* const shared = static_cast<Shared*>(memory);
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared->barrier, &attributes, kProcesses + 1);
  std::vector<std::uint64_t> offsets = places(file.bytes - kReadAround, 4 * kReadAround, 11);
  offsets.resize(std::min(offsets.size(), kRounds));
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t child = ::fork();
    if (child < 0) die_errno("fork");
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    const Mapping mapping(file.fd, file.bytes);
    for (const std::uint64_t at : offsets) {
      pthread_barrier_wait(&shared->barrier);
      mapping.touch(at);
      shared->at[i] = clock_ns();
      pthread_barrier_wait(&shared->barrier);
    }
    ::_exit(0);
  }
  std::vector<double> gaps;
  for (std::size_t round = 0; round < offsets.size(); ++round) {
    pthread_barrier_wait(&shared->barrier);
    pthread_barrier_wait(&shared->barrier);
    const auto [first, last] = std::minmax_element(std::begin(shared->at), std::end(shared->at));
    gaps.push_back(static_cast<double>(*last - *first) * 1e-9 / (kProcesses - 1));
  }
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  return median(gaps);
}

nlohmann::json requests(const std::string& path) {
  const OpenFile file(path);
  const RawFile raw = open_raw(path);
  if (file.bytes < (std::uint64_t{64} << 20)) die("%s: needs at least 64 MiB", path.c_str());
  if (!raw.direct) die("%s: direct requests are not possible", path.c_str());
  nlohmann::json j = requests_one_at_a_time(raw);
  drop(file);
  j["major_fault_s"] = major_fault(file, raw);
  drop(file);
  j["wake_s"] = one_after_the_other(file);
  return j;
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
