// The writer of bench/factors --study argonne and bench/follow.  Commits to databases, with stock LMDB.
//
//   run_writer DATABASE.. --value BYTES [--records K] [--first N] [--overwrite N] [--rate PER_S]
//              [--commits N]
//
// Each commit appends K records to a database, whose keys come after those of N records of the benchmark
// databases.  With --overwrite, it replaces K of N records in a random order instead.  The databases take
// turns.  --rate: commits per second; 0: without pauses.  --commits: number of commits; 0: until standard
// input ends.  Commits are not synchronized with the disk (MDB_NOSYNC).
//
// A value begins with the time at which its transaction began, in ns (CLOCK_MONOTONIC).  The key "end"
// follows in each database if --commits is given.
//
// Prints "ready", waits for a byte from standard input, and at the end prints a line of JSON: the commits,
// the seconds, and the median and mean time of a transaction in us.
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/epochs_of_run.h"
#include "bench/keys.h"

namespace lmdbio::bench {
namespace {

struct Options {
  std::vector<const char*> paths;
  std::uint64_t value = 0, records = 1, first = 0, overwrite = 0, rate = 0, commits = 0;
};

Options parse(int argc, char** argv) {
  Options o;
  const std::pair<const char*, std::uint64_t*> numbers[] = {
      {"--value", &o.value},         {"--records", &o.records}, {"--first", &o.first},
      {"--overwrite", &o.overwrite}, {"--rate", &o.rate},       {"--commits", &o.commits},
  };
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    const auto* number =
        std::find_if(std::begin(numbers), std::end(numbers), [&](const auto& n) { return a == n.first; });
    if (number != std::end(numbers) && i + 1 < argc)
      *number->second = std::strtoull(argv[++i], nullptr, 10);
    else if (a[0] != '-')
      o.paths.push_back(argv[i]);
    else
      die("run_writer: %s: see run_writer.cc", a.c_str());
  }
  if (o.paths.empty() || o.value < sizeof(std::uint64_t) || o.records == 0)
    die("run_writer: a database, --value of at least 8, --records");
  return o;
}

struct Database {
  MDB_env* env = nullptr;
  std::uint64_t next = 0;  // number of the next record
};

MDB_env* open_env(const char* path) {
  MDB_env* env = nullptr;
  must(mdb_env_create(&env), "mdb_env_create");
  must(mdb_env_set_mapsize(env, std::size_t{1} << 36), "mdb_env_set_mapsize");
  must(mdb_env_open(env, path, MDB_NOSYNC, 0644), path);
  return env;
}

bool input_has_ended() {
  pollfd in{STDIN_FILENO, POLLIN, 0};
  return poll(&in, 1, 0) != 0;
}

/// Makes one commit.  `put` is called with the transaction.
template <class Put>
void commit(MDB_env* env, Put&& put) {
  MDB_txn* txn = nullptr;
  MDB_dbi dbi = 0;
  must(mdb_txn_begin(env, nullptr, 0, &txn), "mdb_txn_begin");
  must(mdb_dbi_open(txn, nullptr, 0, &dbi), "mdb_dbi_open");
  put(txn, dbi);
  must(mdb_txn_commit(txn), "mdb_txn_commit");
}

void put_records(Database& db, const Options& o, std::vector<char>& value) {
  const std::uint64_t now = clock_ns();
  std::memcpy(value.data(), &now, sizeof now);
  commit(db.env, [&](MDB_txn* txn, MDB_dbi dbi) {
    for (std::uint64_t i = 0; i < o.records; ++i, ++db.next) {
      const std::uint64_t ordinal = o.overwrite != 0 ? mix(db.next) % o.overwrite : db.next;
      char name[kKeyRoom];
      MDB_val key{make_key(KeyKind::kImage, ordinal, false, name), name}, v{value.size(), value.data()};
      must(mdb_put(txn, dbi, &key, &v, 0), "mdb_put");
    }
  });
}

int run(int argc, char** argv) {
  const Options o = parse(argc, argv);
  std::vector<Database> databases;
  for (const char* const path : o.paths) databases.push_back({open_env(path), o.first});
  std::vector<char> value(o.value, 'v');
  std::vector<double> work_us;
  std::puts("ready");
  if (std::fflush(stdout) != 0) die_errno("standard output");
  wait_for_start();
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t n = 0; o.commits == 0 ? !input_has_ended() : n < o.commits; ++n) {
    if (o.rate != 0) std::this_thread::sleep_until(begin + std::chrono::nanoseconds(1000000000 / o.rate * n));
    const std::uint64_t begun = clock_ns();
    put_records(databases[n % databases.size()], o, value);
    work_us.push_back(static_cast<double>(clock_ns() - begun) * 1e-3);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  for (const Database& db : databases) {
    if (o.commits != 0)
      commit(db.env, [](MDB_txn* txn, MDB_dbi dbi) {
        MDB_val key{3, const_cast<char*>("end")}, none{};
        must(mdb_put(txn, dbi, &key, &none, 0), "mdb_put");
      });
    mdb_env_close(db.env);
  }
  const double n = std::max<double>(1, static_cast<double>(work_us.size()));
  const double mean = std::accumulate(work_us.begin(), work_us.end(), 0.0) / n;
  std::sort(work_us.begin(), work_us.end());
  std::printf("{\"commits\": %zu, \"seconds\": %.6f, \"median_us\": %.2f, \"mean_us\": %.2f}\n",
              work_us.size(), seconds.count(), work_us.empty() ? 0 : work_us[work_us.size() / 2], mean);
  return 0;
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) { return lmdbio::bench::run(argc, argv); }
