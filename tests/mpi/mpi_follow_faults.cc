// Ranks, writers and files that fail or go away while the ranks of an MPI job follow a database together.  Each
// rank must get to know it.  follow_scenario.h describes the arguments; the scenarios are the functions below.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/mpi/follow_scenario.h"

namespace {

using namespace lmdbio::test;

/// A writer is killed within a transaction: the ranks see the last commit, and those of the next writer.
void writer_is_killed() {
  if (is_writer()) {
    const pid_t child = ::fork();
    if (child == 0) {
      FollowWriter writer(path, "", false);
      writer.commit(records(0, 40, 0));
      writer.begin(records(40, 40, 0));
      (void)::raise(SIGKILL);
    }
    int status = 0;
    expect(::waitpid(child, &status, 0) == child && WIFSIGNALED(status), "the writer");
  }
  barrier();
  std::optional<lmdbio::MpiRanks> mpi;
  std::optional<lmdbio::Follow> follow;
  std::uint64_t seen = 0;
  if (!is_writer()) {
    mpi.emplace(followers);
    lmdbio::Follow::Options o = options(20, 4);
    o.fields.timeout = 0.1;
    o.finished_key = "end";
    follow.emplace(mpi->follow(path, o));
    for (int i = 0; i < 2; ++i) seen += follow->next()->fresh;
    const Failure f = failure_of([&] { (void)follow->next(); });
    expect(f.code == ETIMEDOUT && has(f.why, "no new records"), text(f));
  }
  barrier();
  if (is_writer()) {
    FollowWriter writer(path, "", false);
    writer.commit(records(100, 10, 1));
    writer.commit({{"end", ""}});
  }
  barrier();
  if (is_writer()) return;
  seen += read_all(*follow).size();
  MPI_Allreduce(MPI_IN_PLACE, &seen, 1, MPI_UINT64_T, MPI_SUM, followers);
  expect(seen == 50, std::to_string(seen) + " new records");
}

/// The file is replaced by a compacted copy: all ranks get ESTALE, and again.
void replaced() {
  const auto writer = database();
  std::optional<lmdbio::MpiRanks> mpi;
  std::optional<lmdbio::Follow> follow;
  if (!is_writer()) {
    mpi.emplace(followers);
    lmdbio::Follow::Options o = options(20, 0);
    o.fields.timeout = 60;
    follow.emplace(mpi->follow(path, o));
    for (int i = 0; i < 2; ++i) (void)follow->next();
  }
  barrier();
  if (is_writer()) {
    writer->compacted_copy(path + "-copy");
    fs::rename(path + "-copy/data.mdb", path + "/data.mdb");
    return;
  }
  for (int i = 0; i < 2; ++i) {
    const Failure f = failure_of([&] { (void)follow->next(); });
    expect(f.code == ESTALE && has(f.why, "replaced") && has(f.why, "open the database again"), text(f));
    expect(rank == 0 || has(f.why, "rank 0: "), f.why);
  }
}

/// Rank 1 closes its end early: the others go on.  Then rank 0 does: the others get the batches that it has
/// returned, and then an error.  All can then follow again.
void closes() {
  const auto writer = database(400);
  if (is_writer()) return;
  const lmdbio::MpiRanks mpi(followers);
  auto follow = std::make_unique<lmdbio::Follow>(mpi.follow(path, options(8, 4, LMDBIO_EMPTY_STOP)));
  const auto read = [&](std::uint64_t first, std::uint64_t n) {
    for (std::uint64_t i = first; i < first + n; ++i)
      expect(follow->next()->batch.position() == i, "batch " + std::to_string(i));
  };
  read(0, 3);
  if (rank == 1) {
    follow.reset();
  } else {
    read(3, 10);
    if (rank == 0) {
      follow.reset();
    } else {
      for (int i = 0; i < 2; ++i) {
        const Failure f = failure_of([&] { (void)follow->next(); });
        expect(f.code == ECANCELED && has(f.why, "rank 0 has stopped"), text(f));
      }
      follow.reset();
    }
  }
  follow = std::make_unique<lmdbio::Follow>(mpi.follow(path, options(8, 4, LMDBIO_EMPTY_STOP)));
  expect(count_keys(read_all(*follow), 400).second == 400, "new records");
}

/// Rank 0 closes its end while the others still have to read its batches: it waits, or if `cancels`, keeps
/// the snapshot without waiting.  A writer replaces all records meanwhile.
void close_early(bool cancels) {
  constexpr unsigned kRecords = 60, kBatches = 3;
  const auto writer = database(kRecords);
  MPI_Comm others = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? 1 : 0, rank, &others);
  std::optional<lmdbio::MpiRanks> mpi;
  std::optional<lmdbio::Follow> follow;
  if (!is_writer()) {
    mpi.emplace(followers);
    follow.emplace(mpi->follow(path, options(12, 3)));
  }
  for (unsigned i = 0; rank == 0 && i < kBatches; ++i) (void)follow->next();
  if (rank == 0 && cancels) {
    follow->cancel();
    follow.reset();
  }
  barrier();
  if (rank == 0) {
    follow.reset();
  } else {
    if (is_writer())
      for (unsigned c = 1; c < 100; ++c) writer->commit(records(0, kRecords, c));
    MPI_Barrier(others);
    for (unsigned i = 0; !is_writer() && i < kBatches; ++i) {
      const std::optional<lmdbio::Follow::Next> next = follow->next();
      for (const lmdbio::Record& r : next->batch)
        expect(version_of(r) == 0, "a record of commit " + std::to_string(version_of(r)));
    }
    if (!is_writer()) {
      const Failure f = failure_of([&] { (void)follow->next(); });
      expect(f.code == ECANCELED && has(f.why, "rank 0 has stopped"), text(f));
      follow.reset();
    }
  }
  MPI_Comm_free(&others);
}
void late_close() { close_early(false); }
void late_cancel() { close_early(true); }

/// Rank 0 waits for a commit, and is cancelled: so are all.
void cancels() {
  const auto writer = database();
  if (is_writer()) return;
  const lmdbio::MpiRanks mpi(followers);
  lmdbio::Follow follow = mpi.follow(path, options(20, 0));
  for (int i = 0; i < 2; ++i) (void)follow.next();
  std::thread canceller;
  if (rank == 0) canceller = std::thread([&] { follow.cancel(); });
  for (int i = 0; i < 2; ++i) {
    const Failure f = failure_of([&] { (void)follow.next(); });
    expect(f.code == ECANCELED, text(f));
  }
  if (rank == 0) canceller.join();
}

/// Options that differ, a file that one rank does not have, one that is another file, and a state of other
/// options: errors of all ranks.
void differ() {
  const auto writer = database();
  if (is_writer()) FollowWriter(path + "-other", "", false).commit(records(0, 39, 0));
  barrier();
  if (is_writer()) return;
  const lmdbio::MpiRanks mpi(followers);
  lmdbio::Follow::Options o = options(8, 4);
  o.fields.seed = rank == 1 ? 2 : 1;
  Failure f = failure_of([&] { (void)mpi.follow(path, o); });
  expect(f.code == EINVAL && has(f.why, "rank 1 (") && has(f.why, "other options"), text(f));
  o.fields.seed = 1;
  if (rank != 1) fs::create_symlink(path, "db");
  f = failure_of([&] { (void)mpi.follow("db", o); });
  expect(f.code == ENOENT && has(f.why, "db") && (rank == 1 || has(f.why, "rank 1 (")), text(f));
  fs::create_symlink(rank == 1 ? path + "-other" : path, "two");
  std::optional<lmdbio::Follow> follow;
  f = failure_of([&] { follow.emplace(mpi.follow("two", o)); });
  expect(rank == 1 ? f.code == ESTALE && has(f.why, "not the same file on all ranks") : f.code == 0, text(f));
  if (rank != 1) expect(follow->next().has_value(), "the other ranks go on");
  follow.reset();
  f = failure_of([&] { follow.emplace(mpi.follow(path, o)); });
  expect(f.code == 0, text(f));
  o.state = follow->state();
  follow.reset();
  o.fields.lag = 9;
  f = failure_of([&] { (void)mpi.follow(path, o); });
  expect(f.code == EINVAL && has(f.why, "was saved with other options"), text(f));
}

/// A label function throws on one rank: its exception arrives there, and the others go on.
void label_throws() {
  const auto writer = database();
  if (is_writer()) return;
  const lmdbio::MpiRanks mpi(followers);
  lmdbio::Follow::Options o = options(8, 4, LMDBIO_EMPTY_STOP);
  o.fields.buffer = LMDBIO_BUFFER_CLASS;
  int calls = 0;
  o.label = [&](auto, auto) -> std::uint64_t {
    if (rank == 1 && ++calls == 5) throw std::logic_error("no label");
    return 0;
  };
  try {
    lmdbio::Follow follow = mpi.follow(path, o);
    expect(rank != 1, "an exception");
    (void)read_all(follow);
  } catch (const std::logic_error&) {
    expect(rank == 1, "no exception");
  }
}

/// MPI_Finalize ends what is open; a forked child can neither use nor harm anything.
void finalize() {
  const auto writer = database();
  lmdbio_mpi* mpi = nullptr;
  lmdbio_follow* follow = nullptr;
  if (is_writer()) return;
  expect(lmdbio_mpi_init(followers, nullptr, &mpi) == 0, lmdbio_error());
  lmdbio_follow_options o = options(8, 4).fields;
  o.size = sizeof o;
  expect(lmdbio_mpi_follow_open(nullptr, path.c_str(), &o, &follow) == EINVAL, "no ranks");
  expect(lmdbio_mpi_follow_open(mpi, nullptr, &o, &follow) == EINVAL, "no path");
  expect(lmdbio_mpi_follow_open(mpi, path.c_str(), &o, &follow) == 0, lmdbio_error());
  const lmdbio_batch* batch = nullptr;
  expect(lmdbio_follow_next(follow, &batch, nullptr) == 0, lmdbio_error());
  lmdbio_batch_release(batch);
  const pid_t child = ::fork();
  if (child == 0) {
    const int rc = lmdbio_follow_next(follow, &batch, nullptr);
    lmdbio_follow_close(follow);
    ::_exit(rc == EINVAL ? 0 : 1);
  }
  int status = 1;
  expect(::waitpid(child, &status, 0) == child && status == 0, "the child");
  expect(lmdbio_follow_next(follow, &batch, nullptr) == 0, lmdbio_error());
  lmdbio_batch_release(batch);
  MPI_Finalize();
  expect(lmdbio_follow_next(follow, &batch, nullptr) == EINVAL, "next after MPI_Finalize");
  lmdbio_follow_close(follow);
  expect(lmdbio_mpi_finalize(mpi) == 0, "lmdbio_mpi_finalize");
}

/// One rank is killed while the others wait for a commit: mpirun ends the job.  The writer waits in a
/// barrier, because mpirun of PMIx 4.2 sometimes waits for itself if a rank is in MPI_Finalize meanwhile.
void is_killed(int which) {
  const auto writer = database();
  if (is_writer()) barrier();  // nobody else comes
  const lmdbio::MpiRanks mpi(followers);
  lmdbio::Follow follow = mpi.follow(path, options(8, 4));
  (void)follow.next();
  if (rank == which) {
    std::puts("ends now");
    std::fflush(stdout);
    (void)::raise(SIGKILL);
  }
  for (;;) (void)follow.next();
}
void rank_0_is_killed() { is_killed(0); }
void rank_1_is_killed() { is_killed(1); }

const std::map<std::string, void (*)()> kScenarios = {{"writer_is_killed", writer_is_killed},
                                                      {"replaced", replaced},
                                                      {"closes", closes},
                                                      {"cancels", cancels},
                                                      {"late_close", late_close},
                                                      {"late_cancel", late_cancel},
                                                      {"differ", differ},
                                                      {"label_throws", label_throws},
                                                      {"finalize", finalize},
                                                      {"rank_0_is_killed", rank_0_is_killed},
                                                      {"rank_1_is_killed", rank_1_is_killed}};

}  // namespace

int main(int argc, char** argv) { return run_scenario(argc, argv, kScenarios); }
