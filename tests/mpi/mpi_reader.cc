// Ranks of a real MPI job read by lmdbio/mpi.h, in random configurations; each compares its batches with
// those of a reader of its own.
//
//   mpirun -n P mpi_reader [--level N] [--seed N] [--rounds N] [--hosts N] [--largest BYTES] [--case NAME]
//   [--io HOW]
//
// --io: LMDBIO_IO, normally buffered, since the records are in the page cache, so that nothing is exchanged
// with automatic; mixed: automatic on each second rank.
// --case: what such programs are known to get wrong, in all configurations: see set_case().
// --level: of MPI_Init_thread, 0 (SINGLE) to 3 (MULTIPLE).  --rounds: configurations, of which one follows
// from each seed.  --hosts: there have to be so many.  Exit status 0: all batches were the same.
#include <lmdbio/mpi_reader.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/base/mix.h"
#include "tests/support/orders.h"
#include "tests/support/reader_db.h"

namespace {

using lmdbio::testing::ReaderDb;

int rank = 0, ranks = 1;

struct Options {
  int level = MPI_THREAD_MULTIPLE;
  std::uint64_t seed = 1, rounds = 1, hosts = 0, largest = std::uint64_t{1} << 20;
  std::string which;  ///< case
  std::string io = "buffered";
};

bool parse(int argc, char** argv, Options& o) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const std::uint64_t value = std::strtoull(argv[i + 1], nullptr, 10);
    if (name == "--level")
      o.level = static_cast<int>(value);
    else if (name == "--seed")
      o.seed = value;
    else if (name == "--rounds")
      o.rounds = value;
    else if (name == "--hosts")
      o.hosts = value;
    else if (name == "--largest")
      o.largest = value;
    else if (name == "--case")
      o.which = argv[i + 1];
    else if (name == "--io")
      o.io = argv[i + 1];
    else
      return false;
  }
  return argc % 2 == 1;
}

/// A batch as it was given.
struct Given {
  std::uint64_t epoch, position;
  std::size_t padding;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> records;  ///< ordinal, hash of key and value
  friend bool operator==(const Given&, const Given&) = default;
};

std::uint64_t hash(std::span<const std::byte> bytes, std::uint64_t seed) {
  std::uint64_t h = lmdbio::mix(seed ^ bytes.size());
  for (const std::byte b : bytes) h = lmdbio::mix(h ^ static_cast<std::uint64_t>(b));
  return h;
}

Given given(const lmdbio::Batch& b) {
  Given g{b.epoch(), b.position(), b.padding(), {}};
  for (const lmdbio::Record& r : b) g.records.emplace_back(r.ordinal, hash(r.value, hash(r.key, 1)));
  return g;
}

/// What follows from a seed, on all ranks.
struct Configuration {
  std::uint64_t records, smallest, largest, again, held, stop_after;
  std::string database;
  lmdbio::Order order;
  std::vector<std::uint64_t> list;  ///< of order
  bool leaves;
  lmdbio::Reader::Options reader;
  lmdbio_mpi_options mpi{};
  int leaver;

  Configuration(std::uint64_t seed, std::uint64_t limit) {
    lmdbio::test::Rng rng(seed);
    const std::uint64_t kinds[] = {0, 300, 2100, 5000, 100'000, limit};
    largest = std::min(kinds[rng.below(std::size(kinds))], limit);
    records = 1 + rng.below(largest > 50'000 ? 150 : 3000);
    smallest = rng.percent(50) ? 0 : largest;
    again = rng.percent(50) ? 0 : rng.below(records / 4 + 1);
    if (rng.percent(30)) database = "named";
    order.kind = rng.percent(40)   ? LMDBIO_ORDER_SEQUENTIAL
                 : rng.percent(40) ? LMDBIO_ORDER_WINDOW_SHUFFLE
                 : rng.percent(50) ? LMDBIO_ORDER_SHUFFLE
                 : rng.percent(50) ? LMDBIO_ORDER_LIST
                                   : LMDBIO_ORDER_FUNCTION;
    order.window = 1 + rng.below(records);
    order.seed = seed;
    order.batch = 1 + rng.below(40);
    order.end_epoch = 1 + rng.below(3);
    order.last = static_cast<lmdbio_last>(rng.below(3));
    order.across_epochs = rng.percent(50);
    if (order.kind == LMDBIO_ORDER_LIST)
      for (std::uint64_t i = 0; i < 2 * records; ++i) list.push_back(rng.below(records));
    order.list = list.data();
    order.function = lmdbio::test::any_ordinal;
    order.function_context = reinterpret_cast<void*>(static_cast<std::uintptr_t>(records));
    order.length = order.kind == LMDBIO_ORDER_LIST ? list.size() : 1 + rng.below(2 * records);
    order.share(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(ranks),
                rng.percent(50) ? order.batch : 1);
    held = rng.below(4);
    // Each rank resumes at another position.
    stop_after = rng.percent(30) ? 1 + rng.below(10) + static_cast<std::uint64_t>(rank) % 3 : 0;
    leaves = rng.percent(30);
    leaver = static_cast<int>(rng.below(static_cast<std::uint64_t>(ranks)));
    reader.memory = rng.percent(30) ? std::size_t{8} << 20 : 0;
    mpi.readers_per_node = static_cast<unsigned>(rng.below(4));
    mpi.no_thread = rng.percent(20);
    if (rng.percent(30)) mpi.stagger_group = 1 + static_cast<unsigned>(rng.below(4));
    mpi.stagger_reads = static_cast<unsigned>(rng.below(4));
  }

  Configuration(const Configuration&) = delete;  // order has a pointer to list
  Configuration& operator=(const Configuration&) = delete;

  /// False: there is no such case.
  bool set_case(const std::string& which) {
    leaves = false;
    stop_after = 0;
    if (which == "out_of_file_order") {
      again = records / 2 + 1;
    } else if (which == "small_values") {
      smallest = 0, largest = 1500;
    } else if (which == "uneven_sizes") {
      smallest = 0, largest = 100'000, records = 150;
    } else if (which == "indivisible_batches") {  // neither by the ranks nor by the records
      records = 997, order.batch = 13, order.last = LMDBIO_LAST_KEEP;
      order.share(order.offset, order.step, 1);
    } else if (which == "wrap_around") {
      records = 500 + 7, order.batch = 32, order.end_epoch = 4, order.across_epochs = 1;
      order.share(order.offset, order.step, 1);
    } else if (which == "two_readers_a_node") {
      mpi.readers_per_node = 2;
    } else if (which == "groups") {  // that do not divide the readers
      mpi.readers_per_node = 3, mpi.stagger_group = 2, mpi.stagger_reads = 1;
    } else if (which == "shuffle" || which == "function") {  // of records that share their pages
      smallest = 0, largest = 300, records = 3000, order.end_epoch = 3;
      order.length = records;
      order.kind = which == "shuffle" ? LMDBIO_ORDER_SHUFFLE : LMDBIO_ORDER_FUNCTION;
      order.function_context = reinterpret_cast<void*>(static_cast<std::uintptr_t>(records));
      return true;
    } else {
      return which.empty();
    }
    if (order.kind != LMDBIO_ORDER_WINDOW_SHUFFLE) order.kind = LMDBIO_ORDER_SEQUENTIAL;
    order.window = std::min(order.window, records);
    return true;
  }

  void make(ReaderDb& db, std::uint64_t seed) const {
    const auto size = [&](std::uint64_t i) -> std::size_t {
      return static_cast<std::size_t>(smallest + lmdbio::mix(seed ^ i) % (largest - smallest + 1));
    };
    const char* const name = database.empty() ? nullptr : database.c_str();
    db.fill(records, size, 0, name);
    for (std::uint64_t i = 0; i < again; ++i) {
      const std::uint64_t which = lmdbio::mix(seed + i) % records;
      db.put_again(which, size(which + 1), name);
    }
  }
};

int failures = 0;
void expect(bool right, const Configuration& c, const std::string& what) {
  if (right) return;
  ++failures;
  std::fprintf(
      stderr,
      "rank %d: %s (%llu records of %llu to %llu bytes, kind %d, batch %llu, block %llu, end %llu, last "
      "%d, across %d, readers %u)\n",
      rank, what.c_str(), static_cast<unsigned long long>(c.records),
      static_cast<unsigned long long>(c.smallest), static_cast<unsigned long long>(c.largest), c.order.kind,
      static_cast<unsigned long long>(c.order.batch), static_cast<unsigned long long>(c.order.block),
      static_cast<unsigned long long>(c.order.end_epoch), c.order.last, c.order.across_epochs,
      c.mpi.readers_per_node);
}

/// All batches of an order of a reader of this rank alone.
std::vector<Given> alone(const std::string& path, const Configuration& c) {
  lmdbio::Reader::Options options;
  options.database = c.database;
  lmdbio::Reader reader(path, options);
  std::vector<Given> all;
  lmdbio::Stream stream = reader.stream(c.order);
  for (const lmdbio::Batch& b : stream) all.push_back(given(b));
  return all;
}

/// Up to `most` batches from where `order` says, which have to be those from `expected[at]` on.
std::size_t together(const lmdbio::Reader& reader, const Configuration& c, const lmdbio::Order& order,
                     const std::vector<Given>& expected, std::size_t at, std::size_t most,
                     lmdbio::Position& position) {
  lmdbio::Stream stream = reader.stream(order);
  std::vector<lmdbio::Batch> held;  // batches outlive the stream's next ones
  std::vector<std::size_t> numbers;
  std::size_t n = 0;
  for (; n < most; ++n) {
    std::optional<lmdbio::Batch> b;
    try {
      b = stream.next();
    } catch (const lmdbio::Error& e) {
      if (e.code() != ENOMEM || c.reader.memory == 0) throw;
      if (held.empty()) {  // all ranks' batches together are read in rounds, which may be too large
        expect(c.order.batch * c.largest > c.reader.memory / 8, c, e.what());
        return n;
      }
      for (std::size_t i = 0; i < held.size(); ++i)
        expect(given(held[i]) == expected[numbers[i]], c, "batch " + std::to_string(numbers[i]) + " differs");
      held.clear();
      numbers.clear();
      --n;
      continue;
    }
    if (!b) {
      expect(
          at + n == expected.size(), c,
          "the end after " + std::to_string(at + n) + " of " + std::to_string(expected.size()) + " batches");
      break;
    }
    if (at + n >= expected.size()) {
      expect(false, c, "more than " + std::to_string(expected.size()) + " batches");
      break;
    }
    held.push_back(std::move(*b));
    numbers.push_back(at + n);
    if (held.size() <= c.held) continue;
    expect(given(held.front()) == expected[numbers.front()], c,
           "batch " + std::to_string(numbers.front()) + " differs");
    held.erase(held.begin());
    numbers.erase(numbers.begin());
  }
  position = stream.position();
  for (std::size_t i = 0; i < held.size(); ++i)
    expect(given(held[i]) == expected[numbers[i]], c, "batch " + std::to_string(numbers[i]) + " differs");
  return n;
}

void run(std::uint64_t seed, std::uint64_t limit, const std::string& which) {
  Configuration c(seed, limit);
  if (!which.empty() && !c.set_case(which)) throw std::runtime_error("no case " + which);
  // All hosts see one file system: rank 0 makes the database.
  std::optional<ReaderDb> made;
  char path[4096] = "";
  if (rank == 0) {
    made.emplace();
    c.make(*made, seed);
    (void)std::snprintf(path, sizeof path, "%s", made->dir().c_str());
  }
  MPI_Bcast(path, sizeof path, MPI_CHAR, 0, MPI_COMM_WORLD);
  const std::vector<Given> expected = alone(path, c);
  MPI_Barrier(MPI_COMM_WORLD);
  {
    const lmdbio::MpiRanks mpi(MPI_COMM_WORLD, c.mpi);
    lmdbio::Reader::Options options = c.reader;
    options.database = c.database;
    const lmdbio::Reader reader = mpi.open(path, options);
    lmdbio::Position position;
    std::size_t at = 0;
    if (c.stop_after != 0) {
      at = together(reader, c, c.order, expected, 0, c.stop_after, position);
      if (at < c.stop_after) {  // the end, or ENOMEM
        at = expected.size();
        position = {c.order.end_epoch, 0};
      }
      lmdbio::Order rest = c.order;
      rest.resume(position);  // empty for a rank that has read all
      if (c.leaves && rank == c.leaver)
        (void)reader.stream(rest);
      else
        (void)together(reader, c, rest, expected, at, SIZE_MAX, position);
    } else {
      const std::size_t most = c.leaves && rank == c.leaver ? seed % 7 : SIZE_MAX;
      (void)together(reader, c, c.order, expected, 0, most, position);
    }
  }
  MPI_Barrier(MPI_COMM_WORLD);  // rank 0 removes the database
}

int hosts() {
  MPI_Comm host;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  int in_host = 0, all = 0;
  MPI_Comm_rank(host, &in_host);
  const int first = in_host == 0 ? 1 : 0;
  MPI_Allreduce(&first, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Comm_free(&host);
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  const bool usable = parse(argc, argv, o);
  int level = 0;
  MPI_Init_thread(&argc, &argv, o.level, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (!usable || level < o.level || (o.hosts != 0 && hosts() != static_cast<int>(o.hosts))) {
    if (rank == 0)
      std::fprintf(stderr, "see the head of mpi_reader.cc; thread level %d, %d hosts\n", level, hosts());
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  if (o.io == "buffered" || o.io == "direct" || (o.io == "mixed" && rank % 2 == 0))
    (void)setenv("LMDBIO_IO", o.io == "direct" ? "direct" : "buffered", 1);
  else if (o.io == "automatic" || o.io == "mixed")
    (void)unsetenv("LMDBIO_IO");
  else
    MPI_Abort(MPI_COMM_WORLD, 2);
  try {
    for (std::uint64_t i = 0; i < o.rounds && failures == 0; ++i) {
      if (rank == 0 && std::getenv("MPI_READER_SEEDS") != nullptr)
        std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(o.seed + i));
      run(o.seed + i, o.largest, o.which);
      int all = 0;
      MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
      if (all != 0 && rank == 0)
        std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(o.seed + i));
      if (all != 0) break;
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  if (failures != 0) MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_Finalize();
  return 0;
}
