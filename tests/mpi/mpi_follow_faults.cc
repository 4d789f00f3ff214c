// What goes wrong in MPI jobs whose ranks follow a database together, and what each rank then gets to know.
//
//   mpirun -n P mpi_follow_faults SCENARIO DIRECTORY [LEVEL]
//
// The last rank is the writer, all others follow.  LEVEL: of MPI_Init_thread; default: MULTIPLE.  Exit status
// 0: as expected.  Scenarios are the functions below.
#include <lmdbio/mpi_reader.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/mpi/follow_writer.h"

namespace {

using lmdbio::test::FollowWriter;
namespace fs = std::filesystem;

int rank = 0, ranks = 1;
std::string path;
MPI_Comm followers = MPI_COMM_NULL;

bool is_writer() { return rank == ranks - 1; }
void barrier() { MPI_Barrier(MPI_COMM_WORLD); }
void expect(bool right, const std::string& what) {
  if (!right) throw std::runtime_error(what);
}

std::string key_of(unsigned i) {
  char key[16];
  (void)std::snprintf(key, sizeof key, "k%06u", i);
  return key;
}
/// The value of a record that commit `version` wrote.
std::string value_of(unsigned i, unsigned version, std::size_t size = 100) {
  std::string out;
  while (out.size() < size) out += key_of(i) + "." + std::to_string(version) + ";";
  return out;
}
std::vector<FollowWriter::Record> records(unsigned first, unsigned n, unsigned version,
                                          std::size_t size = 100) {
  std::vector<FollowWriter::Record> out;
  for (unsigned i = first; i < first + n; ++i) out.emplace_back(key_of(i), value_of(i, version, size));
  return out;
}
std::string text(std::span<const std::byte> b) { return {reinterpret_cast<const char*>(b.data()), b.size()}; }
/// Returns the version of a record, whose value must be whole.
unsigned version_of(const lmdbio::Record& r) {
  const std::string key = text(r.key), value = text(r.value);
  expect(value.size() > key.size() + 1, key + ": " + value);
  const unsigned version = static_cast<unsigned>(std::atoi(value.c_str() + key.size() + 1));
  expect(value == value_of(static_cast<unsigned>(std::atoi(key.c_str() + 1)), version, value.size()),
         key + " has bytes of another version: " + value.substr(0, 40));
  return version;
}

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
bool has(const std::string& all, const std::string& part) { return all.find(part) != std::string::npos; }
std::string text(const Failure& f) { return std::to_string(f.code) + ": " + f.why; }

/// The writer makes a database with some records, and stays.
std::unique_ptr<FollowWriter> database(unsigned n = 40) {
  std::unique_ptr<FollowWriter> writer;
  if (is_writer()) {
    writer = std::make_unique<FollowWriter>(path, "", false);
    writer->commit(records(0, n, 0));
  }
  barrier();
  return writer;
}

lmdbio::Follow::Options options(std::uint64_t fresh, std::uint64_t old,
                                lmdbio_on_empty on_empty = LMDBIO_EMPTY_WAIT) {
  lmdbio::Follow::Options o;
  o.fields.fresh = fresh;
  o.fields.old = old;
  o.fields.on_empty = on_empty;
  o.fields.renew_seconds = 1e6;
  return o;
}

/// Follows until the writer has put "end".  Returns the new records of this rank; all of them must be whole.
std::vector<std::string> read_all(lmdbio::Follow& follow) {
  std::vector<std::string> out;
  while (const std::optional<lmdbio::Follow::Next> next = follow.next())
    for (std::size_t i = 0; i < next->batch.size(); ++i) {
      (void)version_of(next->batch[i]);
      if (i < next->fresh) out.push_back(text(next->batch[i].key));
    }
  return out;
}

/// Returns how many different keys and how many keys all followers have.
std::pair<std::size_t, std::size_t> count_keys(const std::vector<std::string>& own, unsigned most) {
  std::vector<int> seen(most);
  for (const std::string& key : own) ++seen[static_cast<std::size_t>(std::atoi(key.c_str() + 1))];
  MPI_Allreduce(MPI_IN_PLACE, seen.data(), static_cast<int>(most), MPI_INT, MPI_SUM, followers);
  std::pair<std::size_t, std::size_t> n;
  for (const int s : seen) n.first += s != 0, n.second += static_cast<std::size_t>(s);
  return n;
}

void expect_same_states(lmdbio::Follow& follow) {
  const std::vector<std::byte> state = follow.state();
  std::uint64_t size = state.size();
  MPI_Bcast(&size, 1, MPI_UINT64_T, 0, followers);
  std::vector<std::byte> first(state);
  first.resize(size);
  MPI_Bcast(first.data(), static_cast<int>(size), MPI_BYTE, 0, followers);
  expect(first == state, "another state than rank 0");
}

/// A writer that commits all the time: appends records, and replaces some.  All values are whole, each key is
/// seen, and all ranks end with the same state.
void beside_writer(bool appends_only, unsigned flags) {
  constexpr unsigned kCommits = 150, kEach = 8;
  const auto writer = database(8);
  if (is_writer()) {
    for (unsigned c = 1; c < kCommits; ++c) {
      auto puts = records(c * kEach, kEach, c, 300);
      if (!appends_only) {
        const auto replaced = records(c * 7 % (c * kEach), 1, c, 200);
        puts.insert(puts.end(), replaced.begin(), replaced.end());
      }
      writer->commit(puts);
    }
    writer->commit({{"end", ""}});
    return;
  }
  const lmdbio::MpiRanks mpi(followers);
  lmdbio::Follow::Options o = options(16, 8);
  o.finished_key = "end";
  o.fields.append_only = appends_only ? 1 : 0;
  o.fields.flags = flags;
  lmdbio::Follow follow = mpi.follow(path, o);
  const std::vector<std::string> own = read_all(follow);
  const auto [different, all] = count_keys(own, kCommits * kEach);
  expect(different == std::size_t{kCommits} * kEach, std::to_string(different) + " keys");
  expect(!appends_only || all == different, std::to_string(all) + " new records");
  expect_same_states(follow);
}
void beside() { beside_writer(false, 0); }
void appends() { beside_writer(true, 0); }
void lockless() { beside_writer(true, MDB_NOLOCK); }

/// Without locks, a writer overwrites the snapshot: all ranks get ESTALE.
void overwritten() {
  const auto writer = database();
  std::optional<lmdbio::MpiRanks> mpi;
  std::optional<lmdbio::Follow> follow;
  if (!is_writer()) {
    mpi.emplace(followers);
    lmdbio::Follow::Options o = options(8, 0);
    o.fields.flags = MDB_NOLOCK;
    follow.emplace(mpi->follow(path, o));
    (void)follow->next();
  }
  barrier();
  if (is_writer())
    for (unsigned c = 1; c < 4; ++c) writer->commit(records(0, 40, c));
  barrier();
  if (is_writer()) return;
  for (int i = 0; i < 2; ++i) {
    const Failure f = failure_of([&] { (void)follow->next(); });
    expect(f.code == ESTALE && has(f.why, "overwritten the snapshot"), text(f));
  }
}

/// The other ranks are late: rank 0 holds the snapshots that they still need, while a writer replaces all
/// records again and again.
void late() {
  constexpr unsigned kRecords = 60, kSteps = 8;
  const auto writer = database(kRecords);
  std::optional<lmdbio::MpiRanks> mpi;
  std::optional<lmdbio::Follow> follow;
  if (!is_writer()) {
    mpi.emplace(followers);
    lmdbio::Follow::Options o = options(12, 3, LMDBIO_EMPTY_REHEARSE);
    o.fields.renew_batches = 1;
    follow.emplace(mpi->follow(path, o));
  }
  std::vector<unsigned> versions(kSteps);
  const auto step = [&](unsigned s) {
    const std::optional<lmdbio::Follow::Next> next = follow->next();
    expect(next->batch.position() == s && next->batch.size() > 0, "batch " + std::to_string(s));
    std::set<unsigned> seen;
    for (const lmdbio::Record& r : next->batch) seen.insert(version_of(r));
    expect(seen.size() == 1, "records of several commits in batch " + std::to_string(s));
    return *seen.begin();
  };
  unsigned version = 0;
  for (unsigned s = 0; s < kSteps; ++s) {
    barrier();
    if (rank == 0) versions[s] = step(s);
    barrier();
    for (unsigned c = 0; c < 5; ++c) {
      ++version;
      if (is_writer()) writer->commit(records(0, kRecords, version));
    }
  }
  barrier();
  MPI_Bcast(versions.data(), kSteps, MPI_UNSIGNED, 0, MPI_COMM_WORLD);
  // So many snapshots are kept for the other ranks, and the last one is not renewed any more.
  expect(std::set<unsigned>(versions.begin(), versions.end()).size() == 6, "snapshots of rank 0");
  if (rank != 0 && !is_writer())
    for (unsigned s = 0; s < kSteps; ++s)
      expect(step(s) == versions[s], "another commit than rank 0 in batch " + std::to_string(s));
  barrier();
  if (is_writer()) return;
  // Now that nothing is kept for them any more, rank 0 renews again.
  expect(step(kSteps) == version, "the newest commit");
}

/// The same without locks, with a writer that only appends.  It overwrites pages of the snapshots that the
/// late ranks have to take, so they take the records from newer ones.
void late_lockless() {
  constexpr unsigned kSteps = 6, kEach = 9;
  const auto writer = database(kEach);
  std::optional<lmdbio::MpiRanks> mpi;
  std::optional<lmdbio::Follow> follow;
  if (!is_writer()) {
    mpi.emplace(followers);
    lmdbio::Follow::Options o = options(5, 3, LMDBIO_EMPTY_REHEARSE);
    o.fields.renew_batches = 1;
    o.fields.append_only = 1;
    o.fields.flags = MDB_NOLOCK;
    o.finished_key = "end";
    follow.emplace(mpi->follow(path, o));
  }
  std::vector<std::string> own;
  const auto step = [&] {
    const std::optional<lmdbio::Follow::Next> next = follow->next();
    for (std::size_t i = 0; i < next->batch.size(); ++i) {
      (void)version_of(next->batch[i]);
      if (i < next->fresh) own.push_back(text(next->batch[i].key));
    }
  };
  unsigned version = 0;
  for (unsigned s = 0; s < kSteps; ++s) {
    barrier();
    if (rank == 0) step();
    barrier();
    for (unsigned c = 0; c < 3; ++c) {
      ++version;
      if (is_writer()) writer->commit(records(version * kEach, kEach, version));
    }
  }
  if (is_writer()) writer->commit({{"end", ""}});
  barrier();
  if (is_writer()) return;
  for (unsigned s = 0; rank != 0 && s < kSteps; ++s) step();
  const std::vector<std::string> rest = read_all(*follow);
  own.insert(own.end(), rest.begin(), rest.end());
  const auto [different, all] = count_keys(own, (version + 1) * kEach);
  expect(different == std::size_t{version + 1} * kEach && all == different, std::to_string(all) + " records");
  expect_same_states(*follow);
}

/// Only rank 0 has reader slots, and while all wait for a commit, only one: that of the newest snapshot.
void slots() {
  const auto writer = database(40);
  std::optional<lmdbio::MpiRanks> mpi;
  std::optional<lmdbio::Follow> follow;
  if (!is_writer()) {
    mpi.emplace(followers);
    lmdbio::Follow::Options o = options(30, 0);
    o.fields.renew_seconds = 0.05;
    follow.emplace(mpi->follow(path, o));
  }
  barrier();
  if (is_writer()) {
    expect(writer->held() == std::vector<std::uint64_t>{1}, "slots after the start");
    writer->commit(records(40, 30, 1));
  }
  barrier();
  std::uint64_t seen = 0;
  for (int i = 0; !is_writer() && i < 2; ++i) seen += follow->next()->fresh;
  barrier();
  if (is_writer()) {
    for (int tries = 0; writer->held() != std::vector<std::uint64_t>{2}; ++tries) {
      expect(tries < 2000, std::to_string(writer->held().size()) + " slots while all wait");
      ::usleep(10'000);
    }
    writer->commit(records(70, 20, 2));
    return;
  }
  seen += follow->next()->fresh;
  MPI_Allreduce(MPI_IN_PLACE, &seen, 1, MPI_UINT64_T, MPI_SUM, followers);
  expect(seen == 90, std::to_string(seen) + " new records");
}

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

const std::map<std::string, void (*)()> kScenarios = {{"beside", beside},
                                                      {"appends", appends},
                                                      {"lockless", lockless},
                                                      {"overwritten", overwritten},
                                                      {"late", late},
                                                      {"slots", slots},
                                                      {"late_lockless", late_lockless},
                                                      {"writer_is_killed", writer_is_killed},
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

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, argc > 3 ? std::atoi(argv[3]) : MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const auto found = kScenarios.find(argc > 1 ? argv[1] : "");
  if (argc < 3 || argc > 4 || found == kScenarios.end()) {
    if (rank == 0) std::fprintf(stderr, "see the head of mpi_follow_faults.cc\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  try {
    path = std::string(argv[2]) + "/db";
    const std::string mine = std::string(argv[2]) + "/rank" + std::to_string(rank);
    fs::create_directory(mine);
    fs::current_path(mine);
    MPI_Comm_split(MPI_COMM_WORLD, is_writer() ? 1 : 0, rank, &followers);
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
