// The snapshots of MPI jobs whose ranks follow a database together: which ones are held, and what a writer
// may overwrite.  follow_scenario.h describes the arguments; the scenarios are the functions below.
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/mpi/follow_scenario.h"

namespace {

using namespace lmdbio::test;

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

const std::map<std::string, void (*)()> kScenarios = {
    {"beside", beside},     {"appends", appends},
    {"lockless", lockless}, {"overwritten", overwritten},
    {"late", late},         {"late_lockless", late_lockless},
    {"slots", slots}};

}  // namespace

int main(int argc, char** argv) { return run_scenario(argc, argv, kScenarios); }
