// The environments that programs run on: the catalogue written once, what stands in them, and copies to work
// on.
#pragma once

#include <string>
#include <vector>

#include "tests/support/dbgen.h"

namespace lmdbio::diff {

struct Contents {
  std::vector<std::string> keys;                 ///< some of the keys, in order
  std::vector<std::vector<std::string>> values;  ///< some of the values of each
};

struct Environment {
  test::EnvSpec spec;
  std::string dir;                 ///< the master copy
  std::vector<test::DbSpec> dbs;   ///< [0] is the main database, also when never written
  std::vector<Contents> contents;  ///< of each
  Contents free_list;
};

/// Writes the catalogue of `seed`, or the one of large databases, below `dir` and reads back what it holds.
std::vector<Environment> build_environments(const test::LmdbApi& lmdb, std::uint64_t seed, bool large,
                                            const std::string& dir);

/// Puts a fresh copy of `e` where `side` works on it; the lock file, if any, is removed.
void fresh_copy(const Environment& e, const std::string& to_dir);
/// Removes the lock files of a copy, so that the next open decides their size.
void remove_locks(const std::string& dir);

}  // namespace lmdbio::diff
