// The limit of the exchange in bench/distributed.  Each rank sends to and receives from each other rank, by
// MPI_Isend and MPI_Irecv.  Does not use LMDB.
//
//   mpirun -n P raw_messages [--bytes N] [--size N] [--window N] [--copy]
//
// --bytes: bytes that each rank receives from each other rank.  --size: bytes of a message.  --window:
// messages in flight for each pair of ranks.  --copy: copies each message before it is sent, as records are
// copied from the data that was read.  Rank 0 prints one line of JSON.
#include <mpi.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

namespace {

struct Options {
  std::uint64_t bytes = std::uint64_t{256} << 20;
  std::size_t size = std::size_t{512} << 10, window = 3;
  bool copy = false;
};

double now() {
  timespec t{};
  (void)clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

/// The messages between this rank and another rank, in one direction.
struct Lane {
  int peer = 0;
  bool sends = false;
  std::uint64_t left = 0;  ///< messages that are not started yet
  std::vector<std::vector<char>> buffers;
  std::vector<MPI_Request> requests;

  void start(std::size_t slot, const Options& o, const std::vector<char>& source) {
    requests[slot] = MPI_REQUEST_NULL;
    if (left == 0) return;
    --left;
    std::vector<char>& b = buffers[slot];
    if (sends && o.copy) std::memcpy(b.data(), source.data(), b.size());
    const int n = static_cast<int>(b.size());
    if (sends)
      MPI_Isend(b.data(), n, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &requests[slot]);
    else
      MPI_Irecv(b.data(), n, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &requests[slot]);
  }
};

double run(const Options& o, int rank, int ranks) {
  const std::vector<char> source(o.size, 'x');
  std::vector<Lane> lanes;
  for (int peer = 0; peer < ranks; ++peer)
    for (const bool sends : {false, true}) {
      if (peer == rank) continue;
      Lane lane{peer, sends, (o.bytes + o.size - 1) / o.size, {}, {}};
      lane.buffers.assign(o.window, source);  // resident
      lane.requests.resize(o.window);
      lanes.push_back(std::move(lane));
    }
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = now();
  for (Lane& lane : lanes)
    for (std::size_t slot = 0; slot < o.window; ++slot) lane.start(slot, o, source);
  for (bool under_way = true; under_way;) {
    under_way = false;
    for (Lane& lane : lanes)
      for (std::size_t slot = 0; slot < o.window; ++slot) {
        if (lane.requests[slot] == MPI_REQUEST_NULL) continue;
        int done = 0;
        MPI_Test(&lane.requests[slot], &done, MPI_STATUS_IGNORE);
        if (done != 0) lane.start(slot, o, source);
        under_way = under_way || lane.requests[slot] != MPI_REQUEST_NULL;
      }
  }
  MPI_Barrier(MPI_COMM_WORLD);
  return now() - begin;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  Options o;
  CLI::App app{"Sends messages between all ranks of an MPI job."};
  app.add_option("--bytes", o.bytes)->check(CLI::PositiveNumber);
  app.add_option("--size", o.size)->check(CLI::Range(std::size_t{1}, std::size_t{1} << 30));
  app.add_option("--window", o.window)->check(CLI::PositiveNumber);
  app.add_flag("--copy", o.copy);
  int status = 0, rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  try {
    app.parse(argc, argv);
    const double seconds = run(o, rank, ranks);
    const double bytes = static_cast<double>((o.bytes + o.size - 1) / o.size * o.size) * (ranks - 1) * ranks;
    if (rank == 0)
      std::printf("{\"seconds\": %.6f, \"bytes\": %.0f, \"MB_per_s\": %.1f}\n", seconds, bytes,
                  bytes / seconds / 1e6);
  } catch (const CLI::ParseError& e) {
    status = rank == 0 ? app.exit(e) : 2;
  }
  MPI_Finalize();
  return status;
}
