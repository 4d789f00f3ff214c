// What goes wrong in MPI jobs that read by lmdbio/mpi.h, and what each rank then gets to know.
//
//   mpirun -n P mpi_faults SCENARIO DIRECTORY [LEVEL]
//
// LEVEL: of MPI_Init_thread, 0 (SINGLE) to 3 (MULTIPLE); default: what the scenario is about, else MULTIPLE.
// Each rank works in a directory of its own below DIRECTORY, so that one path can lead to different files.
// Exit status 0: as expected.  Scenarios are the functions below.
#include <lmdbio/mpi_reader.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/reader_db.h"

namespace {

using lmdbio::testing::ReaderDb;
namespace fs = std::filesystem;

int rank = 0, ranks = 1;

void expect(bool right, const std::string& what) {
  if (!right) throw std::runtime_error(what);
}
void barrier() { MPI_Barrier(MPI_COMM_WORLD); }
/// For ranks from which others may still need something: without a thread progress is made in calls.
void barrier(const lmdbio::MpiRanks& mpi) {
  MPI_Request request;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  for (int done = 0; done == 0;) {
    mpi.poll();
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  }
}

int hosts() {
  static const int all = [] {
    MPI_Comm host;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    int in_host = 0, n = 0;
    MPI_Comm_rank(host, &in_host);
    const int first = in_host == 0 ? 1 : 0;
    MPI_Allreduce(&first, &n, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Comm_free(&host);
    return n;
  }();
  return all;
}

/// Ranks wait for each other without MPI.
std::string done_file(int r) { return "../done" + std::to_string(r); }
void is_done() { (void)fs::create_directory(done_file(rank)); }
void wait_for_others() {
  for (int r = 0; r < ranks; ++r)
    while (r != rank && !fs::exists(done_file(r))) ::usleep(10'000);
}

/// What the call fails with, and says.
struct Failure {
  int code = 0;
  std::string why;
};
template <class Call>
Failure failure_of(Call&& call) {
  try {
    call();
  } catch (const lmdbio::Error& e) {
    return {e.code(), e.what()};
  }
  return {};
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Rank 0 makes a database; each rank has it, the same file, as `name` in its directory.
void database(const std::string& name, std::uint64_t records = 2000, std::size_t bytes = 3000) {
  if (rank == 0) {
    ReaderDb db;
    db.fill(records, [bytes](std::uint64_t i) { return i % 7 == 0 ? 0 : bytes; });
    fs::copy(db.dir(), "../" + name, fs::copy_options::recursive);
  }
  barrier();
  fs::create_symlink("../" + name, name);
}

lmdbio::Order share(std::uint64_t batch = 16) {
  lmdbio::Order o = lmdbio::Order::sequential(batch);
  o.share(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(ranks), 1);
  return o;
}

std::uint64_t read_all(const lmdbio::Reader& reader, lmdbio::Order order) {
  lmdbio::Stream stream = reader.stream(order);
  std::uint64_t records = 0, next = static_cast<std::uint64_t>(rank);
  for (const lmdbio::Batch& b : stream)
    for (const lmdbio::Record& r : b) {
      expect(r.ordinal == next,
             "record " + std::to_string(r.ordinal) + " instead of " + std::to_string(next));
      next += static_cast<std::uint64_t>(ranks);
      ++records;
    }
  return records;
}

std::uint64_t share_of(std::uint64_t records) {
  const auto r = static_cast<std::uint64_t>(rank), n = static_cast<std::uint64_t>(ranks);
  return (records + n - 1 - r) / n;
}

/// One rank does not have the file: all have its error.
void missing() {
  database("db");
  if (rank == 1) fs::remove("db");
  const lmdbio::MpiRanks mpi(MPI_COMM_WORLD);
  const Failure f = failure_of([&] { lmdbio::MpiRanks::wait(mpi.open("db")); });
  expect(f.code == ENOENT, "code " + std::to_string(f.code));
  expect(has(f.why, "db") && (rank == 1 || has(f.why, "rank 1 (")), f.why);
}

/// One rank has another file of the same size.
void different() {
  database("db");
  if (rank == ranks - 1) {
    fs::remove("db");
    fs::copy("../db", "db", fs::copy_options::recursive);
    // The clock of the file system may not have moved on.
    fs::last_write_time("db/data.mdb", fs::last_write_time("../db/data.mdb") + std::chrono::seconds(1));
  }
  const lmdbio::MpiRanks mpi(MPI_COMM_WORLD);
  const lmdbio::Reader reader = mpi.open("db");
  const Failure f = failure_of([&] { (void)read_all(reader, share()); });
  expect(f.code == ESTALE && has(f.why, "not the same file") && has(f.why, "modification time"), f.why);
}

/// One rank never opens; it opens in the end, and gets to know that it was too late.
void late() {
  database("db");
  lmdbio_mpi_options options{};
  options.timeout = 2;
  const lmdbio::MpiRanks mpi(MPI_COMM_WORLD, options);
  if (rank == 1) wait_for_others();
  const lmdbio::Reader reader = mpi.open("db");
  const Failure f = failure_of([&] { lmdbio::MpiRanks::wait(reader); });
  is_done();
  expect(f.code == ETIMEDOUT && has(f.why, "rank 1 did not open it within 2 s"), f.why);
}

/// One rank opens streams in another order than the others.
void orders() {
  database("db");
  const lmdbio::MpiRanks mpi(MPI_COMM_WORLD);
  const lmdbio::Reader reader = mpi.open("db");
  const Failure f = failure_of([&] { (void)read_all(reader, share(rank == 1 ? 8 : 16)); });
  expect(f.code == EINVAL && has(f.why, "rank 1 (") && has(f.why, "another order than rank 0"), f.why);
  expect(read_all(reader, share(4)) == share_of(2000), "the next stream");
}

/// Two databases, opened in another order on each rank, before any of them is read.
void two() {
  database("a", 500);
  database("b", 900);
  const lmdbio::MpiRanks mpi(MPI_COMM_WORLD);
  std::map<std::string, std::unique_ptr<lmdbio::Reader>> readers;
  for (const char* const name : {rank % 2 == 0 ? "a" : "b", rank % 2 == 0 ? "b" : "a"})
    readers[name] = std::make_unique<lmdbio::Reader>(mpi.open(name));
  lmdbio::Stream a = readers["a"]->stream(share()), b = readers["b"]->stream(share());
  std::uint64_t records = 0;
  for (const lmdbio::Batch& batch : b) records += batch.size();
  expect(records == share_of(900), "b");
  records = 0;
  for (const lmdbio::Batch& batch : a) records += batch.size();
  expect(records == share_of(500), "a");
}

/// The same from two threads, which wait for each other's ranks.
void threads() {
  database("a", 500);
  database("b", 900);
  const lmdbio::MpiRanks mpi(MPI_COMM_WORLD);
  std::string wrong[2];
  const auto work = [&](int which) {
    try {
      const lmdbio::Reader reader = mpi.open(which == 0 ? "a" : "b");
      for (int epoch = 0; epoch < 5; ++epoch)
        expect(read_all(reader, share()) == share_of(which == 0 ? 500 : 900), "records");
    } catch (const std::exception& e) {
      wrong[which] = e.what();
    }
  };
  std::thread other(work, 1 - rank % 2);
  work(rank % 2);
  other.join();
  expect(wrong[0].empty() && wrong[1].empty(), wrong[0] + wrong[1]);
}

/// Commits, with locks, a new value of each of the first records.
void commit(const std::string& directory, const std::string& value) {
  const auto db = ReaderDb::existing(directory);
  const lmdbio::test::LmdbApi& lmdb = db->lmdb();
  const auto check = [&](int rc) { expect(rc == 0, lmdb.strerror(rc)); };
  MDB_env* env;
  MDB_txn* txn;
  MDB_dbi dbi;
  check(lmdb.env_create(&env));
  check(lmdb.env_set_mapsize(env, std::size_t{1} << 30));
  check(lmdb.env_open(env, directory.c_str(), 0, 0644));
  check(lmdb.txn_begin(env, nullptr, 0, &txn));
  check(lmdb.dbi_open(txn, nullptr, 0, &dbi));
  for (std::uint64_t i = 0; i < 4; ++i) {
    std::string key = ReaderDb::number(i), bytes = value;
    MDB_val k{key.size(), key.data()}, v{bytes.size(), bytes.data()};
    check(lmdb.put(txn, dbi, &k, &v, 0));
  }
  check(lmdb.txn_commit(txn));
  lmdb.env_close(env);
}

/// A writer commits between the opens of two ranks: all read its records.
void writer() {
  database("db");
  const lmdbio::MpiRanks mpi(MPI_COMM_WORLD);
  std::optional<lmdbio::Reader> reader;
  if (rank == 0) reader.emplace(mpi.open("db"));
  barrier();
  if (rank == 1) commit("../db", "new");
  barrier();
  if (rank != 0) reader.emplace(mpi.open("db"));
  lmdbio::Stream stream = reader->stream(share());
  const std::optional<lmdbio::Batch> first = stream.next();
  expect((*first)[0].value.size() == 3, "the record of rank " + std::to_string(rank) + " is old");
  expect(reader->size() == 2000, std::to_string(reader->size()) + " records");
}

/// A writer commits while ranks of several nodes read, whom its locks do not protect: an error in the next
/// epoch.  Ranks of one node read on.
void changes() {
  database("db");
  const lmdbio::MpiRanks mpi(MPI_COMM_WORLD);
  {
    lmdbio::Order order = share();
    order.repeat(3);
    const lmdbio::Reader reader = mpi.open("db");
    lmdbio::Stream stream = reader.stream(order);
    (void)stream.next();
    barrier();
    if (rank == 0 && ::fork() == 0) {
      try {
        commit("../db", "new");
      } catch (const std::exception&) {
        ::_exit(1);
      }
      ::_exit(0);
    }
    int status = 0;
    expect(rank != 0 || (::wait(&status) > 0 && status == 0), "the writer");
    barrier();
    const Failure f = failure_of([&] {
      while (const std::optional<lmdbio::Batch> b = stream.next())
        expect(b->epoch() == 0 || hosts() == 1, "epoch");
    });
    expect(hosts() == 1 ? f.code == 0 : f.code == ESTALE && has(f.why, "changed by a writer"), f.why);
    barrier();
  }
}

/// Nobody closes anything but MPI_Finalize.
void finalize() {
  database("db");
  lmdbio_mpi* mpi = nullptr;
  lmdbio_reader* reader = nullptr;
  lmdbio_stream* stream = nullptr;
  expect(lmdbio_mpi_init(MPI_COMM_WORLD, nullptr, &mpi) == 0, lmdbio_error());
  expect(lmdbio_mpi_reader_open(mpi, "db", nullptr, &reader) == 0, lmdbio_error());
  const lmdbio_order order = share();
  expect(lmdbio_stream_open(reader, &order, &stream) == 0, lmdbio_error());
  const lmdbio_batch* batch = nullptr;
  for (int i = 0; i < 3 * rank; ++i) {
    expect(lmdbio_stream_next(stream, &batch) == 0, lmdbio_error());
    if (i % 2 == 0) lmdbio_batch_release(batch);
  }
  MPI_Finalize();
  // What is left can be closed.
  expect(lmdbio_stream_next(stream, &batch) == EINVAL, "next after MPI_Finalize");
  lmdbio_stream_close(stream);
  lmdbio_reader_close(reader);
  expect(lmdbio_mpi_finalize(mpi) == 0, "lmdbio_mpi_finalize");
}

/// For mpi_job.py --fails.
void announce_end() {
  std::puts("ends now");
  std::fflush(stdout);
}

/// One rank unwinds through its stream while others read on.
void unwinds() {
  database("db");
  const lmdbio::MpiRanks mpi(MPI_COMM_WORLD);
  try {
    const lmdbio::Reader reader = mpi.open("db");
    lmdbio::Stream stream = reader.stream(share());
    for (int i = 0; i < 4; ++i) (void)stream.next();
    if (rank == 0) throw std::logic_error("a program's error");
    std::uint64_t records = 0;
    while (const std::optional<lmdbio::Batch> b = stream.next()) records += b->size();
    expect(records == share_of(2000) - std::uint64_t{4} * 16, "records");
  } catch (const std::logic_error&) {
  }
}

/// An exception on one rank unwinds through all, while the others wait for that rank in a collective call: it
/// is caught, and the program can end the job.
void throws() {
  database("db");
  try {
    const lmdbio::MpiRanks mpi(MPI_COMM_WORLD);
    const lmdbio::Reader reader = mpi.open("db");
    lmdbio::Stream stream = reader.stream(share());
    (void)stream.next();
    if (rank == 1) throw std::logic_error("a program's error");
    barrier();
  } catch (const std::logic_error&) {
    announce_end();
    MPI_Abort(MPI_COMM_WORLD, 3);
  }
}

/// An exception on all ranks: MPI_Finalize ends what they left, also if they read together once more before.
void throws_everywhere() {
  database("db");
  for (int round = 0; round < 2; ++round) {
    std::uint64_t records = 0;
    try {
      const lmdbio::MpiRanks mpi(MPI_COMM_WORLD);
      const lmdbio::Reader reader = mpi.open("db");
      lmdbio::Stream stream = reader.stream(share());
      while (const std::optional<lmdbio::Batch> b = stream.next()) records += b->size();
      throw std::logic_error("a program's error");
    } catch (const std::logic_error&) {
    }
    expect(records == share_of(2000), "records");
  }
}

/// One rank comes too late to lmdbio_mpi_init: an error after `timeout` for the others, and then for this
/// one.
void absent_at_init() {
  MPI_Comm all = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &all);
  lmdbio_mpi_options options{};
  options.size = sizeof options;
  options.timeout = 1;
  if (rank == 1) barrier();
  const Failure f = failure_of([&] { const lmdbio::MpiRanks mpi(all, options); });
  expect(f.code == ETIMEDOUT && has(f.why, "within 1 s"), f.why);
  if (rank != 1) barrier();
}

/// A child that is forked meanwhile can neither use nor harm anything, nor by closing all.
void forks() {
  database("db");
  auto mpi = std::make_unique<lmdbio::MpiRanks>(MPI_COMM_WORLD);
  auto reader = std::make_unique<lmdbio::Reader>(mpi->open("db"));
  auto stream = std::make_unique<lmdbio::Stream>(reader->stream(share()));
  std::optional<lmdbio::Batch> kept = stream->next();
  const std::string text(reinterpret_cast<const char*>((*kept)[3].value.data()), (*kept)[3].value.size());
  const pid_t child = ::fork();
  if (child == 0) {
    const Failure f = failure_of([&] { (void)stream->next(); });
    const bool same = std::memcmp((*kept)[3].value.data(), text.data(), text.size()) == 0;
    kept.reset();
    stream.reset();
    reader.reset();
    mpi.reset();
    ::_exit(f.code == EINVAL && same ? 0 : 1);
  }
  int status = 1;
  expect(::waitpid(child, &status, 0) == child && status == 0, "the child: " + std::to_string(status));
  std::uint64_t records = kept->size();
  while (const std::optional<lmdbio::Batch> b = stream->next()) records += b->size();
  expect(records == share_of(2000), "records");
}

/// One rank ends in the middle without a word: mpirun ends the job.
void exits() {
  database("db");
  const lmdbio::MpiRanks mpi(MPI_COMM_WORLD);
  const lmdbio::Reader reader = mpi.open("db");
  lmdbio::Stream stream = reader.stream(share());
  (void)stream.next();
  if (rank == 1) {
    announce_end();
    ::exit(3);
  }
  while (stream.next()) {
  }
}
void is_killed() {
  database("db");
  const lmdbio::MpiRanks mpi(MPI_COMM_WORLD);
  const lmdbio::Reader reader = mpi.open("db");
  lmdbio::Stream stream = reader.stream(share());
  (void)stream.next();
  if (rank == 1) {
    announce_end();
    (void)::kill(::getpid(), SIGKILL);
  }
  while (stream.next()) {
  }
}

/// Calls of a thread that MPI does not allow.
void wrong_thread() {
  database("db");
  const lmdbio::MpiRanks mpi(MPI_COMM_WORLD);
  const lmdbio::Reader reader = mpi.open("db");
  Failure f;
  std::thread([&] { f = failure_of([&] { (void)mpi.open("other"); }); }).join();
  expect(f.code == EINVAL && has(f.why, "main thread"), f.why);
  expect(read_all(reader, share()) == share_of(2000), "records");
}

/// A database without records.
void empty() {
  database("db", 0);
  const lmdbio::MpiRanks mpi(MPI_COMM_WORLD);
  const lmdbio::Reader reader = mpi.open("db");
  lmdbio::Order order = share();
  order.repeat(2);
  expect(read_all(reader, order) == 0 && reader.size() == 0, "records");
}

/// Ranks resume with the same end: some in the last epoch, some at the end, whose streams are empty.  Then
/// all are at the end.  Different ends are an error of all.
void ends() {
  database("db");
  const lmdbio::MpiRanks mpi(MPI_COMM_WORLD);
  const lmdbio::Reader reader = mpi.open("db");
  expect(read_all(reader, share().repeat(3).resume(2)) == share_of(2000), "the last epoch");
  const bool ended = rank % 2 != 0;
  expect(read_all(reader, share().repeat(3).resume(ended ? 3 : 2)) == (ended ? 0 : share_of(2000)),
         "the rest");
  expect(read_all(reader, share().repeat(3).resume(3 + static_cast<std::uint64_t>(rank))) == 0, "nothing");
  expect(read_all(reader, share().resume(5)) == share_of(2000), "one epoch by default");
  lmdbio::Order order = share();
  order.end_epoch = 5 + (rank == 1);
  const Failure f = failure_of([&] { (void)read_all(reader, order); });
  expect(f.code == EINVAL, std::to_string(f.code) + " for different ends: " + f.why);
}

/// Two streams of one reader that are opened before anything is agreed on, and read in another sequence on
/// each rank.
void streams() {
  database("db");
  const lmdbio::MpiRanks mpi(MPI_COMM_WORLD);
  const lmdbio::Reader reader = mpi.open("db");
  lmdbio::Stream all[2] = {reader.stream(share(16)), reader.stream(share(7))};
  for (int i = 0; i < 2; ++i) {
    const int which = (i + rank) % 2;
    std::uint64_t records = 0;
    while (const std::optional<lmdbio::Batch> b = all[which].next()) {
      expect(records % (which == 0 ? 16 : 7) == 0, "batches of stream " + std::to_string(which));
      records += b->size();
    }
    expect(records == share_of(2000), "records of stream " + std::to_string(which));
  }
}

/// A rank of which the others wait for a part of the index closes its reader at once.
void closes() {
  database("db");
  const lmdbio::MpiRanks mpi(MPI_COMM_WORLD);
  for (int leaver = 0; leaver < ranks; ++leaver) {
    auto reader = std::make_unique<lmdbio::Reader>(mpi.open("db"));
    if (rank == leaver) {
      reader.reset();
    } else {
      const std::uint64_t one = static_cast<std::uint64_t>(rank) + 100;
      expect(reader->read(std::span(&one, 1))[0].ordinal == one, "record");
    }
    barrier(mpi);
  }
}

/// A rank is stopped until all others have read everything: they do without it.
void stops() {
  database("db", 6000);
  const lmdbio::MpiRanks mpi(MPI_COMM_WORLD);
  lmdbio::Reader::Options small;
  small.memory = std::size_t{8} << 20;  // many rounds
  const lmdbio::Reader reader = mpi.open("db", small);
  lmdbio::Stream stream = reader.stream(share());
  std::uint64_t records = stream.next()->size();
  if (rank == 1) {
    const pid_t self = ::getpid(), child = ::fork();
    if (child == 0) {
      (void)::kill(self, SIGSTOP);
      wait_for_others();
      (void)::kill(self, SIGCONT);
      ::_exit(0);
    }
    (void)::waitpid(child, nullptr, 0);
  }
  while (const std::optional<lmdbio::Batch> b = stream.next()) records += b->size();
  expect(records == share_of(6000), "records");
  is_done();
}

/// Rank 0 does not call for long, and has no thread: the others have an error, and all end in order.
void absent() {
  database("db");
  lmdbio_mpi_options options{};
  options.timeout = 1;
  const lmdbio::MpiRanks mpi(MPI_COMM_WORLD, options);
  if (rank == 0) wait_for_others();
  const lmdbio::Reader reader = mpi.open("db");
  const Failure f = failure_of([&] { lmdbio::MpiRanks::wait(reader); });
  is_done();
  if (rank != 0) expect(f.code == ETIMEDOUT && has(f.why, "rank 0 did not answer within 11 s"), f.why);
}

/// Ranks with other options than the rest.
void options() {
  database("db");
  lmdbio_mpi_options o{};
  o.stagger_group = rank == 1 ? 2 : 0;
  const lmdbio::MpiRanks mpi(MPI_COMM_WORLD, o);
  const Failure f = failure_of([&] { lmdbio::MpiRanks::wait(mpi.open("db")); });
  expect(f.code == EINVAL && has(f.why, "rank 1 (") && has(f.why, "other lmdbio_mpi_options"), f.why);
}

/// One rank gives another function than the others: where ranks of several nodes read for each other, a rank
/// that is sent other records than it needs has an error.
void functions() {
  database("db");
  const lmdbio::MpiRanks mpi(MPI_COMM_WORLD);
  const lmdbio::Reader reader = mpi.open("db");
  const auto backward = [](void*, std::uint64_t, std::uint64_t i) -> std::uint64_t { return 1999 - i; };
  const auto forward = [](void*, std::uint64_t, std::uint64_t i) -> std::uint64_t { return i; };
  lmdbio::Order order = rank == 1 ? lmdbio::Order::by(forward, nullptr, 2000, 16)
                                  : lmdbio::Order::by(backward, nullptr, 2000, 16);
  order.share(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(ranks), 1);
  order.repeat(8);
  const Failure f = failure_of([&] {
    lmdbio::Stream stream = reader.stream(order);
    std::uint64_t next = 0;
    for (const lmdbio::Batch& b : stream)
      for (const lmdbio::Record& r : b) {
        const std::uint64_t i =
            next++ % share_of(2000) * static_cast<std::uint64_t>(ranks) + static_cast<std::uint64_t>(rank);
        expect(r.ordinal == order.function(nullptr, 0, i), "ordinal " + std::to_string(r.ordinal));
      }
  });
  expect(f.code == 0 || (hosts() > 1 && f.code == EPROTO && has(f.why, "the same order")), f.why);
  const int error = f.code != 0 ? 1 : 0;
  int errors = 0;
  MPI_Allreduce(&error, &errors, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  expect((errors > 0) == (hosts() > 1), std::to_string(errors) + " errors");
}

/// One rank's file is cut short: an error of all.  Then the file of all ranks is, while they read it: errors,
/// but no other records than there were.
void cut() {
  database("db", 6000);
  if (rank == 1) {
    fs::remove("db");
    fs::copy("../db", "db", fs::copy_options::recursive);
    fs::last_write_time("db/data.mdb", fs::last_write_time("../db/data.mdb"));
    fs::resize_file("db/data.mdb", fs::file_size("db/data.mdb") / 2);
  }
  std::vector<std::string> values;  // of this rank
  if (rank != 1) {
    const lmdbio::Reader alone("db");
    lmdbio::Stream stream = alone.stream(share());
    for (const lmdbio::Batch& b : stream)
      for (const lmdbio::Record& r : b)
        values.emplace_back(reinterpret_cast<const char*>(r.value.data()), r.value.size());
  }
  lmdbio::Reader::Options small;
  small.memory = std::size_t{8} << 20;
  {
    const lmdbio::MpiRanks mpi(MPI_COMM_WORLD);
    const Failure f = failure_of([&] { lmdbio::MpiRanks::wait(mpi.open("db", small)); });
    expect(f.code != 0 && has(f.why, "db") && (rank == 1 || has(f.why, "rank 1 (")), f.why);
  }
  barrier();
  if (rank == 1) {
    fs::remove_all("db");
    fs::create_symlink("../db", "db");
  }
  const lmdbio::MpiRanks mpi(MPI_COMM_WORLD);
  const lmdbio::Reader reader = mpi.open("db", small);
  lmdbio::Order order = share();
  order.repeat(2);
  lmdbio::Stream stream = reader.stream(order);
  expect(stream.next().has_value(), "a batch");
  barrier(mpi);
  if (rank == 0) fs::resize_file("../db/data.mdb", 1 << 20);
  barrier(mpi);
  const Failure f = failure_of([&] {
    std::size_t i = 16;
    while (const std::optional<lmdbio::Batch> b = stream.next())
      for (const lmdbio::Record& r : *b) {
        if (values.empty()) continue;
        const std::string& value = values[i++ % values.size()];
        expect(value.size() == r.value.size() && std::memcmp(value.data(), r.value.data(), value.size()) == 0,
               "record " + std::to_string(r.ordinal) + " has another value");
      }
  });
  expect(f.code != 0 && has(f.why, "db"), "no error, or: " + f.why);
}

/// Options and arguments that are wrong.
void arguments() {
  lmdbio_mpi* mpi = nullptr;
  lmdbio_mpi_options options{};
  expect(lmdbio_mpi_init(MPI_COMM_WORLD, &options, &mpi) == EINVAL, "size 0");
  expect(lmdbio_mpi_init(MPI_COMM_WORLD, nullptr, nullptr) == EINVAL, "no place for the result");
  expect(lmdbio_mpi_reader_open(nullptr, "db", nullptr, nullptr) == EINVAL, "open without ranks");
  expect(lmdbio_mpi_wait(nullptr) == EINVAL, "wait without reader");
  expect(lmdbio_mpi_poll(nullptr) == EINVAL, "poll without ranks");
  expect(lmdbio_mpi_finalize(nullptr) == 0, "finalize without ranks");
  database("db");
  const lmdbio::MpiRanks ranks_of(MPI_COMM_WORLD);
  const lmdbio::Reader reader = ranks_of.open("db");
  lmdbio::MpiRanks::wait(reader);
  lmdbio::Order order = share();
  order.kind = LMDBIO_ORDER_WINDOW_SHUFFLE;
  expect(failure_of([&] { (void)reader.stream(order); }).code == EINVAL, "a window of 0 records");
  // Not the share of this rank: read by this rank alone, as lmdbio_stream_open does.
  order = share();
  order.offset = 0;
  order.step = 1;
  std::uint64_t records = 0;
  lmdbio::Stream stream = reader.stream(order);
  for (const lmdbio::Batch& b : stream) records += b.size();
  expect(records == 2000, "all records");
}

const std::map<std::string, void (*)()> kScenarios = {{"missing", missing},
                                                      {"different", different},
                                                      {"late", late},
                                                      {"orders", orders},
                                                      {"two", two},
                                                      {"changes", changes},
                                                      {"threads", threads},
                                                      {"writer", writer},
                                                      {"finalize", finalize},
                                                      {"unwinds", unwinds},
                                                      {"throws", throws},
                                                      {"throws_everywhere", throws_everywhere},
                                                      {"absent_at_init", absent_at_init},
                                                      {"forks", forks},
                                                      {"exits", exits},
                                                      {"is_killed", is_killed},
                                                      {"wrong_thread", wrong_thread},
                                                      {"empty", empty},
                                                      {"ends", ends},
                                                      {"streams", streams},
                                                      {"closes", closes},
                                                      {"stops", stops},
                                                      {"absent", absent},
                                                      {"functions", functions},
                                                      {"cut", cut},
                                                      {"options", options},
                                                      {"arguments", arguments}};

}  // namespace

int main(int argc, char** argv) {
  const std::string scenario = argc > 1 ? argv[1] : "";
  int level = 0;
  const std::map<std::string, int> levels = {{"wrong_thread", MPI_THREAD_FUNNELED},
                                             {"absent", MPI_THREAD_SINGLE}};
  const auto wanted = levels.find(scenario);
  const int usual = wanted != levels.end() ? wanted->second : MPI_THREAD_MULTIPLE;
  MPI_Init_thread(&argc, &argv, argc > 3 ? std::atoi(argv[3]) : usual, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const auto found = kScenarios.find(scenario);
  if (argc < 3 || argc > 4 || found == kScenarios.end()) {
    if (rank == 0) std::fprintf(stderr, "see the head of mpi_faults.cc\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  // By default nothing is exchanged, as the records are in the page cache.  A file that is cut short while it
  // is read must be read directly: what is copied from a mapping at that very moment is SIGBUS
  // (docs/reader.md).
  (void)setenv("LMDBIO_IO", found->first == "cut" ? "direct" : "buffered", 1);
  try {
    const std::string mine = std::string(argv[2]) + "/rank" + std::to_string(rank);
    fs::create_directory(mine);
    fs::current_path(mine);
    (void)hosts();
    found->second();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  int ended = 0;
  MPI_Finalized(&ended);
  if (ended == 0) MPI_Finalize();
  return 0;
}
