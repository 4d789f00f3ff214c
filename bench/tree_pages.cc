// Writes the places of the branch and leaf pages of a benchmark database, which raw_extents reads for
// bench/index.
//
//   tree_pages DATABASE --out FILE
//
// Only for databases that stock LMDB has just written, in the host's byte order.  Ends with a message for any
// other file.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <string>

#include "bench/random_run.h"

namespace lmdbio::bench {
namespace {

constexpr std::size_t kHeader = 16, kFlagsAt = 10, kLowerAt = 12;  // in a page header
constexpr std::uint16_t kBranch = 1, kLeaf = 2;
// Offsets in a meta page, after its header.
constexpr std::size_t kPageSizeAt = 24, kMainAt = 24 + 48, kTxnAt = 24 + 2 * 48 + 8;
constexpr std::size_t kDepthAt = 6, kRootAt = 40;  // in a database record

template <class T>
T load(const char* at) {
  T v;
  std::memcpy(&v, at, sizeof v);
  return v;
}

struct File {
  const char* map = nullptr;
  std::uint64_t bytes = 0, page_bytes = 4096;

  const char* page(std::uint64_t number) const {
    if (number >= bytes / page_bytes) die("page %" PRIu64 " is beyond the end of the file", number);
    return map + number * page_bytes;
  }
};

File map_file(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (fd < 0 || fstat(fd, &status) != 0) die_errno(path.c_str());
  File f;
  f.bytes = static_cast<std::uint64_t>(status.st_size);
  void* const map = mmap(nullptr, f.bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) die_errno("mmap");
  f.map = static_cast<const char*>(map);
  f.page_bytes = load<std::uint32_t>(f.page(0) + kHeader + kPageSizeAt);
  if (f.page_bytes < 512 || f.page_bytes > 32768) die("%s: not a database of LMDB", path.c_str());
  return f;
}

/// Adds the children of a branch page to `out`.
void add_children(const File& f, const char* page, std::vector<std::uint64_t>& out) {
  const std::size_t n = (load<std::uint16_t>(page + kLowerAt) - kHeader) / 2;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t at = load<std::uint16_t>(page + kHeader + 2 * i);
    if (at + 8 > f.page_bytes) die("a damaged branch page");
    const char* const node = page + at;
    out.push_back(load<std::uint16_t>(node) | std::uint64_t{load<std::uint16_t>(node + 2)} << 16 |
                  std::uint64_t{load<std::uint16_t>(node + 4)} << 32);
  }
}

int run(int argc, char** argv) {
  if (argc != 4 || std::string(argv[2]) != "--out") die("usage: tree_pages DATABASE --out FILE");
  const File f = map_file(std::string(argv[1]) + "/data.mdb");
  const char *const first = f.page(0) + kHeader, *const second = f.page(1) + kHeader;
  const bool newer = load<std::uint64_t>(second + kTxnAt) > load<std::uint64_t>(first + kTxnAt);
  const char* const main_db = (newer ? second : first) + kMainAt;
  const unsigned depth = load<std::uint16_t>(main_db + kDepthAt);
  std::vector<Place> places;
  std::vector<std::uint64_t> level;
  if (depth != 0) level.push_back(load<std::uint64_t>(main_db + kRootAt));
  for (unsigned d = 1; d <= depth; ++d) {
    std::vector<std::uint64_t> below;
    for (const std::uint64_t number : level) {
      places.push_back({number * f.page_bytes, f.page_bytes});
      if (d == depth) continue;  // leaf pages are not read
      const char* const page = f.page(number);
      if (load<std::uint16_t>(page + kFlagsAt) != kBranch) die("page %" PRIu64 " is no branch page", number);
      add_children(f, page, below);
    }
    if (d == depth && (load<std::uint16_t>(f.page(level[0]) + kFlagsAt) & kLeaf) == 0) die("no leaf pages");
    level = std::move(below);
  }
  write_places(argv[3], places);
  std::printf("{\"pages\": %zu, \"page_bytes\": %" PRIu64 "}\n", places.size(), f.page_bytes);
  return 0;
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) { return lmdbio::bench::run(argc, argv); }
