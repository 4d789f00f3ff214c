// The backend for Caffe in an MPI job, LMDBIO_MPI=1: each rank gets the records that a skipping walk would
// give it.
//
//   backend_ranks --seed N [--rounds N] [--level N] [--direct 1] [--alone 1]
//
// --direct: reads without the page cache, so that ranks send each other what they read.  --alone: the ranks
// must not read together, for lack of MPI_THREAD_MULTIPLE or because they run on one node.
//
// Each round has two databases and, on each rank, a thread that trains and one that tests.  They open cursors
// in an order of their own, read until they stop somewhere, and shuffle in some rounds.  Meanwhile the main
// thread calls MPI_Allreduce on MPI_COMM_WORLD, as a solver does.
#include <gtest/gtest.h>
#include <mpi.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "caffe/data_reader.hpp"
#include "caffe/stock_cursor.hpp"
#include "caffe/util/db_lmdbio.hpp"
#include "tests/support/reader_db.h"
#include "tests/support/rng.h"

namespace lmdbio::testing {
namespace {

struct Options {
  std::uint64_t seed = 1, rounds = 8;
  int level = MPI_THREAD_MULTIPLE;
  bool direct = false, alone = false;
};

struct Ranks {
  int rank = 0, ranks = 1;
};

std::string from_rank_0(std::string text) {
  char buffer[4096] = "";
  (void)std::snprintf(buffer, sizeof buffer, "%s", text.c_str());
  MPI_Bcast(buffer, sizeof buffer, MPI_CHAR, 0, MPI_COMM_WORLD);
  return buffer;
}

/// Made by rank 0, on a file system that all ranks share.
std::unique_ptr<ReaderDb> make_together(const Ranks& me, std::uint64_t records, std::uint64_t most_bytes) {
  std::unique_ptr<ReaderDb> db;
  if (me.rank == 0) {
    db = std::make_unique<ReaderDb>();
    db->fill(records, [&](std::uint64_t i) { return test::Rng(i).below(most_bytes); });
  }
  const std::string dir = from_rank_0(db != nullptr ? db->dir() : "");
  if (db == nullptr) db = ReaderDb::existing(dir);
  return db;
}

struct Layer {
  const std::string* path = nullptr;
  const Records* records = nullptr;
  bool shuffled = false;
  std::uint64_t values = 0;
};

/// Empty: all values were right.
std::string read(const Layer& layer, const Ranks& me, unsigned seed, bool alone) {
  try {
    caffe::db::LMDBIO db;
    db.Open(*layer.path, caffe::db::READ);
    const std::unique_ptr<caffe::db::LMDBIOCursor> cursor(db.NewCursor());
    const auto rank = static_cast<std::uint64_t>(me.rank), ranks = static_cast<std::uint64_t>(me.ranks);
    StockCursor stock(*layer.records);
    const auto ours = caffe_reader(*cursor, rank, ranks, layer.shuffled, seed);
    const auto wanted = caffe_reader(stock, rank, ranks, layer.shuffled, seed);
    for (std::uint64_t i = 0; i < layer.values; ++i)
      if (ours->read_one() != wanted->read_one()) return "value " + std::to_string(i) + " is wrong";
    const std::uint64_t most = layer.shuffled ? 2 + layer.values * ranks / layer.records->size() : 1;
    const bool together = layer.values > 1 && !layer.shuffled && me.ranks > 1 && !alone;
    if (cursor->together() != together) return together ? "this rank reads alone" : "the ranks read together";
    if (cursor->streams() > most) return std::to_string(cursor->streams()) + " streams";
  } catch (const caffe::Fatal& e) {
    return e.what();
  }
  return {};
}

bool run(const Options& o, const Ranks& me) {
  bool good = true;
  for (std::uint64_t round = 0; round < o.rounds; ++round) {
    test::Rng all(o.seed + round), own((o.seed + round) * 1000 + static_cast<std::uint64_t>(me.rank));
    std::unique_ptr<ReaderDb> dbs[2];
    Records records[2];
    std::string paths[2];
    Layer layers[2];
    const bool one_database = all.below(4) == 0;
    for (int i = 0; i < 2; ++i) {
      if (i == 0 || !one_database) {
        const std::uint64_t n = 1 + all.below(all.below(2) == 0 ? 40 : 3000);
        dbs[i] = make_together(me, n, all.below(2) == 0 ? 3000 : 30000);
        records[i] = dbs[i]->walk();
        paths[i] = dbs[i]->dir();
      }
      const int at = one_database ? 0 : i;
      layers[i] = {&paths[at], &records[at], all.below(3) == 0};
      layers[i].values = own.below(3 * records[at].size() / static_cast<std::uint64_t>(me.ranks) + 5);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    std::atomic<int> running{2};
    std::string wrong[2];
    std::vector<std::thread> threads;
    const int first = static_cast<int>(own.below(2));
    for (const int i : {first, 1 - first})
      threads.emplace_back([&, i] {
        wrong[i] = read(layers[i], me, static_cast<unsigned>(o.seed + round), o.alone);
        --running;
      });
    // Until all threads of all ranks have ended.
    for (int left = 1; left > 0;) {
      const int mine = running;
      MPI_Allreduce(&mine, &left, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
      std::this_thread::yield();
    }
    for (std::thread& t : threads) t.join();
    for (int i = 0; i < 2; ++i) {
      if (wrong[i].empty()) continue;
      good = false;
      std::fprintf(stderr, "rank %d of %d, seed %llu, %s%s: %s\n", me.rank, me.ranks,
                   static_cast<unsigned long long>(o.seed + round), i == 0 ? "train" : "test",
                   layers[i].shuffled ? ", shuffled" : "", wrong[i].c_str());
    }
    MPI_Barrier(MPI_COMM_WORLD);  // rank 0 removes the databases
  }
  return good;
}

}  // namespace
}  // namespace lmdbio::testing

int main(int argc, char** argv) {
  lmdbio::testing::Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    const unsigned long long value = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::strcmp(argv[i], "--seed") == 0) o.seed = value;
    if (std::strcmp(argv[i], "--rounds") == 0) o.rounds = value;
    if (std::strcmp(argv[i], "--level") == 0) o.level = static_cast<int>(value);
    if (std::strcmp(argv[i], "--direct") == 0) o.direct = value != 0;
    if (std::strcmp(argv[i], "--alone") == 0) o.alone = value != 0;
  }
  (void)::setenv("LMDBIO_MPI", "1", 1);
  if (o.direct) (void)::setenv("LMDBIO_IO", "direct", 1);
  int level = 0;
  MPI_Init_thread(&argc, &argv, o.level, &level);
  lmdbio::testing::Ranks me;
  MPI_Comm_rank(MPI_COMM_WORLD, &me.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &me.ranks);
  const int good = lmdbio::testing::run(o, me);
  int all = 0;
  MPI_Allreduce(&good, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  MPI_Finalize();
  return all == 1 ? 0 : 1;
}
