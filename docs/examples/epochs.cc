// Trains (here: sums up) over two shuffled epochs, and resumes in the middle of an epoch after it was
// stopped.
//
//   epochs DATABASE RANK RANKS [EPOCH POSITION]
//
// Prints a line for each epoch, and its position after the first hundred batches.
#include <lmdbio/reader.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>

int main(int argc, char** argv) try {
  if (argc != 4 && argc != 6) {
    std::fprintf(stderr, "usage: epochs DATABASE RANK RANKS [EPOCH POSITION]\n");
    return 2;
  }
  const auto number = [argv](int i) { return std::strtoull(argv[i], nullptr, 10); };

  const lmdbio::Reader reader(argv[1]);
  lmdbio::Order order = lmdbio::Order::shuffled(/*seed_of_all=*/42, /*batch_records=*/32);
  order.share(number(2), number(3)).repeat(2);
  if (argc == 6) order.resume(number(4), number(5));  // the end stays the same

  lmdbio::Stream stream = reader.stream(order);
  unsigned long long sum = 0, epoch = order.epoch;
  int batches = 0;
  for (const lmdbio::Batch& batch : stream) {
    if (batch.epoch() != epoch) {
      std::printf("epoch %llu: %llu\n", epoch, sum);
      epoch = batch.epoch();
      sum = 0;
    }
    for (const lmdbio::Record record : batch)  // views of the batch's bytes: nothing is copied
      sum = std::accumulate(record.value.begin(), record.value.end(), sum + record.ordinal,
                            [](unsigned long long s, std::byte b) { return s + static_cast<unsigned>(b); });
    if (++batches == 100) {
      const lmdbio::Position at = stream.position();
      std::printf("a job that starts with %llu %llu resumes here\n",
                  static_cast<unsigned long long>(at.epoch), static_cast<unsigned long long>(at.position));
    }
  }
  std::printf("epoch %llu: %llu\n", epoch, sum);
  return 0;
} catch (const lmdbio::Error& e) {
  std::fprintf(stderr, "epochs: %s\n", e.what());
  return 1;
}
