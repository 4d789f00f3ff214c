// The loop of reader_loops.py in C++: batches of 64 records in a shuffled order.  Reads only the first byte
// of each value.  Prints the seconds of each epoch; those of the first one include opening.
//
//   reader_loop DATABASE EPOCHS [mapped [BATCH]]
#include <lmdbio/reader.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) try {
  if (argc < 3) return 2;
  auto begun = std::chrono::steady_clock::now();
  const lmdbio::Reader reader(argv[1]);
  std::uint64_t sum = 0;
  for (int epoch = 0; epoch < std::atoi(argv[2]); ++epoch) {
    if (epoch > 0) begun = std::chrono::steady_clock::now();
    lmdbio::Order order = lmdbio::Order::shuffled(1, argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 64);
    order.resume(static_cast<std::uint64_t>(epoch));
    order.zero_copy = argc > 3;
    for (const lmdbio::Batch& batch : reader.stream(order))
      for (const lmdbio::Record record : batch) sum += static_cast<std::uint64_t>(record.value[0]);
    std::printf("%.6f\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
  }
  std::fprintf(stderr, "%llu\n", static_cast<unsigned long long>(sum));
} catch (const std::exception& e) {
  std::fprintf(stderr, "reader_loop: %s\n", e.what());
  return 1;
}
