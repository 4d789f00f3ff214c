// Measures how much a stream slows down MPI_Allreduce over all ranks, as in data-parallel training: without a
// stream, beside an open but idle stream, and beside a stream that reads.
//
//   mpirun -n P sums_beside DATABASE [--mb N] [--sums N] [--rounds N] [--level LEVEL]
//
// --mb: size of an array.  --sums: number of sums for each measurement.  Each round measures the three cases,
// and the first one again (A/A), in an order that changes from round to round.  Rank 0 prints one line of
// JSON: for each round, the seconds of a sum, and the speed relative to the one without a stream.
#include <lmdbio/mpi_reader.h>
#include <mpi.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/random_run.h"

namespace lmdbio::bench {
namespace {

struct Options {
  std::string path, level = "multiple";
  std::uint64_t mb = 100, sums = 5, rounds = 9, batch = 64;
};

int rank = 0, ranks = 1;

class Sums {
 public:
  explicit Sums(const Options& o) : sums_(o.sums), array_(o.mb * 1000000 / sizeof(float), 1.0F) {}
  /// Returns the seconds of a sum.  Calls `step` after each sum.
  template <class Step>
  double seconds(Step&& step) {
    MPI_Barrier(MPI_COMM_WORLD);
    const std::uint64_t begin = clock_ns();
    for (std::uint64_t i = 0; i < sums_; ++i) {
      MPI_Allreduce(MPI_IN_PLACE, array_.data(), static_cast<int>(array_.size()), MPI_FLOAT, MPI_SUM,
                    MPI_COMM_WORLD);
      step();
    }
    MPI_Barrier(MPI_COMM_WORLD);
    return static_cast<double>(clock_ns() - begin) * 1e-9 / static_cast<double>(sums_);
  }

 private:
  std::uint64_t sums_;
  std::vector<float> array_;
};

/// Polls for a second, so that other ranks get all messages that this rank still owes them.
void settle(const MpiRanks& team) {
  constexpr int kPolls = 100;
  for (int i = 0; i < kPolls; ++i) {
    team.poll();
    usleep(10'000);
  }
}

double with_stream(const Options& o, const MpiRanks& team, bool idle, Sums& sums) {
  const Reader reader = team.open(o.path);
  Order order =
      Order::sequential(o.batch).share(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(ranks));
  order.repeat();
  Stream stream = reader.stream(order);
  (void)stream.next();
  if (!idle) return sums.seconds([&] { (void)stream.next(); });
  settle(team);  // until the stream has read ahead
  return sums.seconds([] {});
}

int run(int argc, char** argv) {
  Options o;
  CLI::App app{"Times MPI_Allreduce beside a stream."};
  app.add_option("database", o.path)->required();
  app.add_option("--mb", o.mb, "of an array")->check(CLI::PositiveNumber);
  app.add_option("--sums", o.sums, "for each measurement")->check(CLI::PositiveNumber);
  app.add_option("--rounds", o.rounds)->check(CLI::PositiveNumber);
  app.add_option("--batch", o.batch, "records that a running stream gives after each sum");
  app.add_option("--level", o.level, "of MPI")->check(CLI::IsMember({"funneled", "multiple"}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  const int level = o.level == "multiple" ? MPI_THREAD_MULTIPLE : MPI_THREAD_FUNNELED;
  int granted = 0;
  MPI_Init_thread(&argc, &argv, level, &granted);
  if (granted < level) die("MPI has no level '%s'", o.level.c_str());
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  Sums sums(o);
  const char* const names[] = {"none", "again", "idle",
                               "running"};  // "again": without a stream, a second time
  std::vector<double> seconds[std::size(names)];
  for (std::uint64_t round = 0; round < o.rounds; ++round)
    for (std::size_t i = 0; i < std::size(names); ++i) {
      const std::size_t which = (i + round) % std::size(names);
      if (which < 2) {
        seconds[which].push_back(sums.seconds([] {}));
        continue;
      }
      const MpiRanks team(MPI_COMM_WORLD);
      try {
        seconds[which].push_back(with_stream(o, team, which == 2, sums));
      } catch (const Error& e) {
        die("rank %d: %s", rank, e.what());  // the destructor of `team` would wait for other ranks
      }
    }
  nlohmann::json j{{"ranks", ranks}, {"mb", o.mb}, {"level", o.level}};
  for (std::size_t i = 0; i < std::size(names); ++i) {
    nlohmann::json speeds = nlohmann::json::array();
    for (std::uint64_t round = 0; round < o.rounds; ++round)
      speeds.push_back(seconds[0][round] / seconds[i][round]);
    j["seconds"][names[i]] = seconds[i];
    if (i != 0) j["speed"][names[i]] = speeds;
  }
  if (rank == 0) std::puts(j.dump().c_str());
  MPI_Finalize();
  return 0;
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) {
  try {
    return lmdbio::bench::run(argc, argv);
  } catch (const std::exception& e) {
    lmdbio::bench::die("sums_beside: %s", e.what());
  }
}
