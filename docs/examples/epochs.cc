// Trains (here: sums up) over shuffled epochs, and goes on in mid-epoch after it was stopped.
//
//   epochs DATABASE RANK RANKS [EPOCH POSITION]
//
// Prints a line for each epoch, and where it stands after the first hundred batches.
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
  order.share(number(2), number(3));
  order.epochs = 2;
  if (argc == 6) {
    order.from(number(4), number(5));
    if (order.epoch >= 2) return 0;  // nothing is left
    order.epochs = 2 - order.epoch;
  }

  lmdbio::Stream stream = reader.stream(order);
  unsigned long long sum = 0, epoch = order.epoch;
  int batches = 0;
  for (const lmdbio::Batch& batch : stream) {
    if (batch.epoch() != epoch) {
      std::printf("epoch %llu: %llu\n", epoch, sum);
      epoch = batch.epoch();
      sum = 0;
    }
    for (const lmdbio::Record record : batch)  // the bytes are the batch's: no copies
      sum = std::accumulate(record.value.begin(), record.value.end(), sum + record.ordinal,
                            [](unsigned long long s, std::byte b) { return s + static_cast<unsigned>(b); });
    if (++batches == 100) {
      const lmdbio::Stream::Place place = stream.where();
      std::printf("a job that starts with %llu %llu goes on here\n",
                  static_cast<unsigned long long>(place.epoch),
                  static_cast<unsigned long long>(place.position));
    }
  }
  std::printf("epoch %llu: %llu\n", epoch, sum);
  return 0;
} catch (const lmdbio::Error& e) {
  std::fprintf(stderr, "epochs: %s\n", e.what());
  return 1;
}
