// Ranks of a real MPI job read one database for each other; each compares what it gets with a cursor of the
// real LMDB that skips the others' records.
//
//   mpirun -n P team_ranks [--records N] [--bytes N] [--batch N] [--readers N] [--round N] [--leave RANK]
//                          [--hosts N]
//
// --hosts: there have to be so many.  Exit status 0: all ranks had their records.  1: not so, and standard
// error tells.
#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "lmdbio/ranks/file_source.h"
#include "lmdbio/ranks/message.h"
#include "lmdbio/ranks/mpi_network.h"
#include "lmdbio/ranks/mpi_transport.h"
#include "lmdbio/ranks/rank_stream.h"
#include "tests/support/reader_db.h"

namespace lmdbio::ranks {
namespace {

struct Options {
  std::uint64_t records = 2000, bytes = 3000, batch = 16, readers = 0, round = 256, hosts = 0;
  int leave = -1;
};

bool parse(int argc, char** argv, Options& o) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const std::uint64_t value = std::strtoull(argv[i + 1], nullptr, 10);
    if (name == "--records")
      o.records = value;
    else if (name == "--bytes")
      o.bytes = value;
    else if (name == "--batch")
      o.batch = value;
    else if (name == "--readers")
      o.readers = value;
    else if (name == "--round")
      o.round = value;
    else if (name == "--hosts")
      o.hosts = value;
    else if (name == "--leave")
      o.leave = static_cast<int>(value);
    else
      return false;
  }
  return argc % 2 == 1;
}

int hosts() {
  MPI_Comm host;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  int rank = 0, all = 0;
  MPI_Comm_rank(host, &rank);
  const int first = rank == 0 ? 1 : 0;
  MPI_Allreduce(&first, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Comm_free(&host);
  return all;
}

int run(const Options& o, int rank, int ranks) {
  if (const int there = hosts(); o.hosts != 0 && there != static_cast<int>(o.hosts)) {
    std::fprintf(stderr, "%d hosts\n", there);
    return 1;
  }
  // All on one host: rank 0 makes the database.
  std::unique_ptr<testing::ReaderDb> made;
  char path[4096] = "";
  if (rank == 0) {
    made = std::make_unique<testing::ReaderDb>();
    made->fill(o.records,
               [&](std::uint64_t i) -> std::size_t { return i % 5 == 0 ? 0 : o.bytes * (i % 7) / 3; });
    std::snprintf(path, sizeof path, "%s", made->dir().c_str());
  }
  MPI_Bcast(path, sizeof path, MPI_CHAR, 0, MPI_COMM_WORLD);
  const std::unique_ptr<testing::ReaderDb> db =
      rank == 0 ? std::move(made) : testing::ReaderDb::existing(path);

  MPI_Comm comm;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  Job job;
  job.order = testing::order_of(LMDBIO_ORDER_SEQUENTIAL, o.batch, 2);
  job.order.across_epochs = 1;
  job.ranks = static_cast<std::uint32_t>(ranks);
  job.readers =
      static_cast<std::uint32_t>(o.readers != 0 ? o.readers : static_cast<std::uint64_t>(ranks + 1) / 2);
  job.round_records = o.round;
  const Assignment assignment = Assignment::make(job, o.records).value();
  RankStream::Settings settings;
  for (std::uint32_t r = 0; r < job.readers; ++r)
    settings.reader_ranks.push_back(r * job.ranks / job.readers);
  const auto mine = static_cast<std::uint32_t>(rank);
  const records::Order share = assignment.order_of(mine);
  const std::uint64_t expected = share.left({0, 0}, 1);
  const testing::Records records = db->walk_share(mine, job.ranks, expected);

  const auto reader = db->reader(std::uint64_t{32} << 20, testing::kDirectly);
  FileSource source(*reader);
  MpiTransport transport(comm, 100);
  std::unique_ptr<RankStream> stream;
  if (!RankStream::open(assignment, settings, transport, source, stream).ok()) return 1;
  std::size_t given = 0;
  bool right = true, left = false;
  std::string why;
  // Nobody waits here for longer than that.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(100);
  while (!stream->closed()) {
    if (std::chrono::steady_clock::now() > end) {
      std::fprintf(stderr, "rank %d: %zu of %zu records after 100 s\n", rank, given, records.size());
      return 1;
    }
    if (!transport.poll().ok()) {
      std::fprintf(stderr, "rank %d: %s\n", rank, transport.error());
      return 1;
    }
    RankBatch b;
    const Status st = left ? stream->progress(why) : stream->next(b, why);
    if (left || st.raw() == EAGAIN || st.raw() == MDB_NOTFOUND) {
      if (left && !st.ok()) {
        std::fprintf(stderr, "rank %d: %s\n", rank, why.c_str());
        return 1;
      }
      std::this_thread::yield();
      continue;
    }
    if (!st.ok()) {
      std::fprintf(stderr, "rank %d: %s\n", rank, why.c_str());
      return 1;
    }
    for (const lmdbio_record& r : b.records) {
      right = right && given < records.size() && testing::text(r.key) == records[given].first &&
              testing::text(r.value) == records[given].second;
      ++given;
    }
    if (rank == o.leave && given > records.size() / 3) {
      stream->leave();
      left = true;
    }
  }
  if (!right || (given != records.size() && !left)) {
    std::fprintf(stderr, "rank %d: %zu records, %zu expected, %s\n", rank, given, records.size(),
                 right ? "all right" : "wrong ones among them");
    return 1;
  }
  stream.reset();
  MPI_Barrier(comm);  // rank 0 removes the database
  MPI_Comm_free(&comm);
  return 0;
}

/// Tags are used again, but not while a port has them.
void check_ports() {
  std::unique_ptr<MpiNetwork> network;
  constexpr std::int64_t kMinute = 60'000'000'000;
  const auto check = [](bool right, const char* what) {
    if (!right) throw std::runtime_error(std::string("ports: ") + what);
  };
  check(MpiNetwork::make(MPI_COMM_WORLD, kMinute, network, 4 * kChannels) == MPI_SUCCESS, "no network");
  {
    const auto agreement = network->open_port(0),
               first = network->open_port(1);  // ports have two rows of tags
    check(agreement != nullptr && first != nullptr, "cannot be opened");
    check(network->port_in_use(3) && network->open_port(3) == nullptr, "3 has the tags of 1");
    check(!network->port_in_use(2) && network->open_port(2) != nullptr, "2");
    check(network->open_port(4) != nullptr, "4 has the tags of 2, which is closed");
  }
  check(!network->port_in_use(3), "3, after 1 was closed");
  network->free();
}

}  // namespace
}  // namespace lmdbio::ranks

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  lmdbio::ranks::Options o;
  if (!lmdbio::ranks::parse(argc, argv, o)) {
    if (rank == 0) std::fprintf(stderr, "see the head of team_ranks.cc\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  try {
    lmdbio::ranks::check_ports();
    if (lmdbio::ranks::run(o, rank, ranks) != 0) MPI_Abort(MPI_COMM_WORLD, 1);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
