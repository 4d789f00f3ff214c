// Worker: the raw limit of a scan.  Reads a data file from begin to end without LMDB, through a mapping or
// with pread into one buffer.  Uses the same XOR loop as the other backends.
//
//   run_raw DATABASE [--cpu N]         serves a parent (worker.h); Command::row is a RawWay
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "bench/worker.h"
#include "bench/workload_scan.h"
#include "bench/xor_bytes.h"

namespace lmdbio::bench {
namespace {

constexpr std::size_t kStep = 4u << 20;

struct RawFile {
  int fd = -1;
  std::size_t size = 0;
  const char* map = nullptr;
};

RawFile open_raw(const std::string& database) {
  const std::string path = database + "/data.mdb";
  RawFile file;
  file.fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (file.fd < 0 || fstat(file.fd, &status) != 0) die_errno(path.c_str());
  file.size = static_cast<std::size_t>(status.st_size);
  void* map = mmap(nullptr, file.size, PROT_READ, MAP_SHARED, file.fd, 0);
  if (map == MAP_FAILED) die_errno("mmap");
  file.map = static_cast<const char*>(map);
  return file;
}

std::uint64_t read_mapping(const RawFile& file) {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < file.size; at += kStep)
    sum ^= xor_bytes(file.map + at, std::min(kStep, file.size - at));
  return sum;
}

std::uint64_t read_calls(const RawFile& file, std::vector<char>& buffer) {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < file.size;) {
    const ssize_t n = pread(file.fd, buffer.data(), buffer.size(), static_cast<off_t>(at));
    if (n <= 0) die_errno("pread");
    sum ^= xor_bytes(buffer.data(), static_cast<std::size_t>(n));
    at += static_cast<std::size_t>(n);
  }
  return sum;
}

int run(int argc, char** argv) {
  if (argc != 2 && argc != 4) die("usage: run_raw DATABASE [--cpu N]");
  if (argc == 4) pin_to_cpu(std::atoi(argv[3]));
  const RawFile file = open_raw(argv[1]);
  std::vector<char> buffer(kStep);
  serve([&](const Command& command, Reply& reply) {
    if (command.action == Action::kHello) std::snprintf(reply.provider, sizeof reply.provider, "raw");
    if (command.action != Action::kRun) return;
    const std::uint64_t start = clock_ns();
    reply.digest =
        static_cast<RawWay>(command.row) == RawWay::kMapping ? read_mapping(file) : read_calls(file, buffer);
    reply.ns = clock_ns() - start;
    reply.ops = 1;
  });
  return 0;
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) { return lmdbio::bench::run(argc, argv); }
