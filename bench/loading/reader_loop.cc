// The loop of reader_loops.py in C++: batches of 64 records in a shuffled order, or in the order of the
// database.  Reads only the first byte of each value.  Prints the seconds of each epoch; those of the first
// one include opening.  If DATABASE is a directory of databases, reads all of them with one reader.
//
//   reader_loop DATABASE EPOCHS [mapped|copied [BATCH [shuffled|sequential]]]
#include <lmdbio/reader.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

namespace {

std::vector<std::string> databases(const std::string& path) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(path) || fs::exists(path + "/data.mdb")) return {path};
  std::vector<std::string> found;
  for (const fs::directory_entry& e : fs::directory_iterator(path)) found.push_back(e.path().string());
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) return 2;
  auto begun = std::chrono::steady_clock::now();
  const std::vector<std::string> paths = databases(argv[1]);
  const lmdbio::Reader reader = paths.size() == 1 ? lmdbio::Reader(paths[0]) : lmdbio::Reader(paths);
  const bool mapped = argc > 3 && std::string_view(argv[3]) == "mapped";
  const std::uint64_t batch_size = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 64;
  const bool sequential = argc > 5 && std::string_view(argv[5]) == "sequential";
  std::uint64_t sum = 0;
  for (int epoch = 0; epoch < std::atoi(argv[2]); ++epoch) {
    if (epoch > 0) begun = std::chrono::steady_clock::now();
    lmdbio::Order order =
        sequential ? lmdbio::Order::sequential(batch_size) : lmdbio::Order::shuffled(1, batch_size);
    order.resume(static_cast<std::uint64_t>(epoch));
    order.zero_copy = mapped;
    for (const lmdbio::Batch& batch : reader.stream(order))
      for (const lmdbio::Record record : batch) sum += static_cast<std::uint64_t>(record.value[0]);
    std::printf("%.6f\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
  }
  std::fprintf(stderr, "%llu\n", static_cast<unsigned long long>(sum));
} catch (const std::exception& e) {
  std::fprintf(stderr, "reader_loop: %s\n", e.what());
  return 1;
}
