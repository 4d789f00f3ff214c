// What the programs share whose ranks follow a database together, beside one rank that writes it.
//
//   mpirun -n P PROGRAM SCENARIO DIRECTORY [LEVEL]
//
// The last rank is the writer, all others follow.  LEVEL: of MPI_Init_thread; default: MULTIPLE.  Exit status
// 0: as expected.
#pragma once

#include <lmdbio/mpi_reader.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/mpi/follow_writer.h"

namespace lmdbio::test {

namespace fs = std::filesystem;

inline int rank = 0, ranks = 1;
inline std::string path;
inline MPI_Comm followers = MPI_COMM_NULL;

inline bool is_writer() { return rank == ranks - 1; }
inline void barrier() { MPI_Barrier(MPI_COMM_WORLD); }
inline void expect(bool right, const std::string& what) {
  if (!right) throw std::runtime_error(what);
}

inline std::string key_of(unsigned i) {
  char key[16];
  (void)std::snprintf(key, sizeof key, "k%06u", i);
  return key;
}
/// The value of a record that commit `version` wrote.
inline std::string value_of(unsigned i, unsigned version, std::size_t size = 100) {
  std::string out;
  while (out.size() < size) out += key_of(i) + "." + std::to_string(version) + ";";
  return out;
}
inline std::vector<FollowWriter::Record> records(unsigned first, unsigned n, unsigned version,
                                                 std::size_t size = 100) {
  std::vector<FollowWriter::Record> out;
  for (unsigned i = first; i < first + n; ++i) out.emplace_back(key_of(i), value_of(i, version, size));
  return out;
}
inline std::string text(std::span<const std::byte> b) {
  return {reinterpret_cast<const char*>(b.data()), b.size()};
}
/// Returns the version of a record, whose value must be whole.
inline unsigned version_of(const lmdbio::Record& r) {
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
inline Failure failure_of(Call&& call) {
  try {
    call();
  } catch (const lmdbio::Error& e) {
    return {e.code(), e.what()};
  }
  return {};
}
inline bool has(const std::string& all, const std::string& part) {
  return all.find(part) != std::string::npos;
}
inline std::string text(const Failure& f) { return std::to_string(f.code) + ": " + f.why; }

/// The writer makes a database with some records, and stays.
inline std::unique_ptr<FollowWriter> database(unsigned n = 40) {
  std::unique_ptr<FollowWriter> writer;
  if (is_writer()) {
    writer = std::make_unique<FollowWriter>(path, "", false);
    writer->commit(records(0, n, 0));
  }
  barrier();
  return writer;
}

inline lmdbio::Follow::Options options(std::uint64_t fresh, std::uint64_t old,
                                       lmdbio_on_empty on_empty = LMDBIO_EMPTY_WAIT) {
  lmdbio::Follow::Options o;
  o.fields.fresh = fresh;
  o.fields.old = old;
  o.fields.on_empty = on_empty;
  o.fields.renew_seconds = 1e6;
  return o;
}

/// Follows until the writer has put "end".  Returns the new records of this rank; all of them must be whole.
inline std::vector<std::string> read_all(lmdbio::Follow& follow) {
  std::vector<std::string> out;
  while (const std::optional<lmdbio::Follow::Next> next = follow.next())
    for (std::size_t i = 0; i < next->batch.size(); ++i) {
      (void)version_of(next->batch[i]);
      if (i < next->fresh) out.push_back(text(next->batch[i].key));
    }
  return out;
}

/// Returns how many different keys and how many keys all followers have.
inline std::pair<std::size_t, std::size_t> count_keys(const std::vector<std::string>& own, unsigned most) {
  std::vector<int> seen(most);
  for (const std::string& key : own) ++seen[static_cast<std::size_t>(std::atoi(key.c_str() + 1))];
  MPI_Allreduce(MPI_IN_PLACE, seen.data(), static_cast<int>(most), MPI_INT, MPI_SUM, followers);
  std::pair<std::size_t, std::size_t> n;
  for (const int s : seen) n.first += s != 0, n.second += static_cast<std::size_t>(s);
  return n;
}

inline void expect_same_states(lmdbio::Follow& follow) {
  const std::vector<std::byte> state = follow.state();
  std::uint64_t size = state.size();
  MPI_Bcast(&size, 1, MPI_UINT64_T, 0, followers);
  std::vector<std::byte> first(state);
  first.resize(size);
  MPI_Bcast(first.data(), static_cast<int>(size), MPI_BYTE, 0, followers);
  expect(first == state, "another state than rank 0");
}

/// Runs the scenario that the program's arguments name.  Returns the exit status.
inline int run_scenario(int argc, char** argv, const std::map<std::string, void (*)()>& scenarios) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, argc > 3 ? std::atoi(argv[3]) : MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const auto found = scenarios.find(argc > 1 ? argv[1] : "");
  if (argc < 3 || argc > 4 || found == scenarios.end()) {
    if (rank == 0) std::fprintf(stderr, "see follow_scenario.h\n");
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

}  // namespace lmdbio::test
