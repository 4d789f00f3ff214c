// Functions of the readers of bench/random: the order of the records, the result, and files of places of
// values.
#pragma once

#include <dlfcn.h>

#include <string>
#include <utility>
#include <vector>

#include "bench/process_use.h"
#include "bench/xor_bytes.h"

namespace lmdbio::bench {

/// Returns the first `count` ordinals (0: all) of a permutation of 0 .. records - 1.  `seed` chooses the
/// permutation.
inline std::vector<std::uint32_t> random_order(std::uint64_t records, std::uint64_t count,
                                               std::uint64_t seed) {
  if (records > UINT32_MAX) die("more than 2^32 records");
  std::vector<std::uint32_t> order(records);
  for (std::uint64_t i = 0; i < records; ++i) order[i] = static_cast<std::uint32_t>(i);
  if (count == 0 || count > records) count = records;
  for (std::uint64_t i = 0; i < count; ++i)
    std::swap(order[i], order[i + mix(mix(seed) + i) % (records - i)]);
  order.resize(count);
  return order;
}

/// The result of a reader, which it prints as one line of JSON.
struct RandomResult {
  double seconds = 0, open_seconds = 0;  // the first includes the second
  std::uint64_t bytes = 0, records = 0;  // values that were read
  std::uint64_t digest = 0;              // of values in the order in which they were read
  std::uint64_t set_digest = 0;          // of values with their ordinals, independent of the order
  std::uint64_t entries = 0, tree_pages = 0, page_bytes = 0;  // of the database, if the reader knows
  std::uint64_t requests = 0;                                 // of raw readers
  bool told = false, direct = false;
  std::string library;  // the library whose functions are called

  /// Adds a value.  `xored` is the XOR of its bytes.
  void add(std::uint64_t xored, std::uint64_t size) {
    digest = digest * 0x9e3779b97f4a7c15u + 3 * xored + 5 * size;
    bytes += size;
    ++records;
  }
  void add(std::uint64_t ordinal, const void* data, std::size_t size) {
    const std::uint64_t xored = xor_bytes(data, size);
    add(xored, size);
    set_digest += mix(mix(ordinal) ^ xored);
  }
};

inline void print_result(const RandomResult& r, const ProcessUse& before = {}) {
  std::printf("{\"seconds\": %.6f, \"open_seconds\": %.6f, \"bytes\": %" PRIu64 ", \"records\": %" PRIu64
              ", \"digest\": \"%016" PRIx64 "\", \"set_digest\": \"%016" PRIx64 "\", \"entries\": %" PRIu64
              ", \"tree_pages\": %" PRIu64 ", \"page_bytes\": %" PRIu64 ", \"raw_requests\": %" PRIu64
              ", \"told\": %s, \"direct\": %s, \"library\": \"%s\", ",
              r.seconds, r.open_seconds, r.bytes, r.records, r.digest, r.set_digest, r.entries, r.tree_pages,
              r.page_bytes, r.requests, r.told ? "true" : "false", r.direct ? "true" : "false",
              r.library.c_str());
  print_use(before);
  std::puts("}");
  if (std::fflush(stdout) != 0) die_errno("standard output");
}

/// Returns the path of the object that contains `function`.
inline std::string library_of(void* function) {
  Dl_info info{};
  return function != nullptr && dladdr(function, &info) != 0 ? info.dli_fname : "";
}

/// A range of the data file.  A file of places is an array of these.
struct Place {
  std::uint64_t offset = 0, bytes = 0;
};

inline void write_places(const std::string& path, const std::vector<Place>& places) {
  std::FILE* const f = std::fopen(path.c_str(), "we");
  if (f == nullptr || std::fwrite(places.data(), sizeof(Place), places.size(), f) != places.size() ||
      std::fclose(f) != 0)
    die_errno(path.c_str());
}

inline std::vector<Place> read_places(const std::string& path) {
  std::vector<Place> places;
  std::FILE* const f = std::fopen(path.c_str(), "re");
  if (f == nullptr) die_errno(path.c_str());
  for (Place p; std::fread(&p, sizeof p, 1, f) == 1;) places.push_back(p);
  if (std::ferror(f) != 0) die_errno(path.c_str());
  std::fclose(f);
  return places;
}

}  // namespace lmdbio::bench
