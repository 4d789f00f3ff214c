// Measures the constants of messages between the first and the last rank of a job
// (bench/scale/simulation/README.md).
//
//   mpirun -n P measure_messages
//
// Rank 0 prints one line of JSON: latency_s is the latency of an empty message, bytes_s the bytes a second of
// large ones.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "bench/stats.h"

namespace lmdbio::bench {
namespace {

/// Returns the seconds of a message in one direction, the median of `rounds`.
double one_way(int peer, bool begins, std::size_t bytes, int rounds) {
  std::vector<char> buffer(std::max<std::size_t>(bytes, 1));
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const double begin = MPI_Wtime();
    if (begins) MPI_Send(buffer.data(), static_cast<int>(bytes), MPI_BYTE, peer, 0, MPI_COMM_WORLD);
    MPI_Recv(buffer.data(), static_cast<int>(bytes), MPI_BYTE, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (!begins) MPI_Send(buffer.data(), static_cast<int>(bytes), MPI_BYTE, peer, 0, MPI_COMM_WORLD);
    times.push_back((MPI_Wtime() - begin) / 2);
  }
  times.erase(times.begin(), times.begin() + rounds / 10);  // the first rounds open connections
  return median(times);
}

void run() {
  constexpr std::size_t kLarge = std::size_t{8} << 20;
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks < 2) {
    std::fputs("error: measure_messages needs two ranks\n", stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  if (rank != 0 && rank != ranks - 1) return;
  const int peer = rank == 0 ? ranks - 1 : 0;
  const double empty = one_way(peer, rank == 0, 0, 1000), large = one_way(peer, rank == 0, kLarge, 30);
  if (rank == 0)
    std::printf("{\"latency_s\": %.9f, \"bytes_s\": %.0f}\n", empty,
                static_cast<double>(kLarge) / std::max(large - empty, 1e-9));
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  lmdbio::bench::run();
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
  return 0;
}
