// The limit of bench/tensors: threads copy the records of each batch, in the order of TensorLoader, from a
// mapping of the file to one buffer.  Nothing else is done: the places of all records are found before.
// Prints for each epoch the seconds, the CPU seconds, and the sum of the first bytes of the records.
//
//   copy_loop DATABASE EPOCHS BATCH THREADS
#include <lmdbio/reader.h>
#include <sys/resource.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

namespace {

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 5) return 2;
  const std::uint64_t epochs = std::strtoull(argv[2], nullptr, 10),
                      batch = std::strtoull(argv[3], nullptr, 10);
  const auto threads = static_cast<std::size_t>(std::atoi(argv[4]));
  const lmdbio::Reader reader(argv[1]);
  lmdbio::Order in_order = lmdbio::Order::sequential(64);
  in_order.zero_copy = 1;
  std::vector<std::span<const std::byte>> values;  // in the mapping, which exists as long as the reader
  for (const lmdbio::Batch& b : reader.stream(in_order))
    for (const lmdbio::Record r : b) values.push_back(r.value);
  const std::uint64_t count = values.size();
  const std::size_t size = values.at(0).size();
  const std::align_val_t aligned{std::size_t{2} << 20};
  std::byte* buffers[2];
  for (std::byte*& b : buffers) {
    b = static_cast<std::byte*>(::operator new(batch* size, aligned));
    std::memset(b, 0, batch * size);
  }
  for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
    const auto begun = std::chrono::steady_clock::now();
    const double cpu = cpu_seconds();
    std::uint64_t sum = 0;
    std::barrier together(static_cast<std::ptrdiff_t>(threads));
    const auto copy = [&](std::size_t me) {
      for (std::uint64_t first = 0, n = 0; first < count; first += batch, ++n) {
        const std::uint64_t end = std::min(first + batch, count);
        std::byte* const to = buffers[n % 2];
        const std::uint64_t part = (end - first + threads - 1) / threads, from = first + me * part;
        for (std::uint64_t i = from; i < std::min(from + part, end); ++i)
          std::memcpy(to + (i - first) * size, values[lmdbio_shuffle(1, epoch, count, i)].data(), size);
        together.arrive_and_wait();
        if (me == 0)
          for (std::uint64_t i = 0; i < end - first; ++i) sum += static_cast<std::uint64_t>(to[i * size]);
      }
    };
    std::vector<std::thread> others;
    for (std::size_t t = 1; t < threads; ++t) others.emplace_back(copy, t);
    copy(0);
    for (std::thread& t : others) t.join();
    std::printf("%.6f %.6f %llu\n",
                std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count(),
                cpu_seconds() - cpu, static_cast<unsigned long long>(sum));
  }
  for (std::byte* const b : buffers) ::operator delete(b, aligned);
} catch (const std::exception& e) {
  std::fprintf(stderr, "copy_loop: %s\n", e.what());
  return 1;
}
