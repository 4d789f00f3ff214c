// Databases of every kind that LMDB 0.9 can write, generated from a seed by calling an LMDB.
//
// An EnvSpec says what an environment holds; generate() writes it.  The same spec gives the same records
// every time; the same LMDB gives the same file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/lmdb_api.h"
#include "tests/support/rng.h"

namespace lmdbio::test {

/// What a database is an example of; a row of the coverage table.
enum class DbKind : std::uint8_t {
  kPlain,          // short keys, small values
  kOne,            // a single record
  kOverflow,       // most values on overflow pages
  kDeep,           // four levels or more
  kDupsort,        // sub-pages, and sub-databases of one level
  kDupsortDeep,    // sub-databases with branch pages
  kDupfixed,       // LEAF2 sub-pages and sub-databases; data of 1, 2, 4, 8, 16, .. bytes
  kIntegerKey,     // keys of 4 or 8 bytes, with and without duplicates
  kIntegerDup,     // INTEGERDUP|DUPFIXED, data of 4 or 8 bytes
  kIntegerDupVar,  // INTEGERDUP alone
  kReverseKey,
  kReverseDup,
  kCustomKey,  // mdb_set_compare
  kCustomDup,  // mdb_set_dupsort
  kNamed,      // plain, under a name
  kDirectory,  // main database that holds named ones, and a few records beside them
  kFree,       // handle 0
  kEmpty,      // written, then emptied
  kNeverWritten,
};
inline constexpr int kDbKinds = 19;
const char* name_of(DbKind kind) noexcept;

struct DbSpec {
  std::string name;  ///< empty: the main database
  DbKind kind = DbKind::kPlain;
  unsigned flags = 0;  ///< as for mdb_dbi_open, without MDB_CREATE
  unsigned keys = 0;
  unsigned key_min = 1, key_max = 20;      ///< sizes; equal for integer keys
  unsigned value_min = 0, value_max = 50;  ///< sizes; equal with MDB_DUPFIXED
  unsigned dups = 1;                       ///< at most so many values a key; most keys have few
  int key_comparator = -1;                 ///< as for comparator(); -1: LMDB's own
  int dup_comparator = -1;
};

struct EnvSpec {
  std::string name;  ///< usable as a file name
  std::uint64_t seed = 0;
  unsigned page_size = 4096;
  std::vector<DbSpec> dbs;  ///< none: never written
  bool churn = false;       ///< deletions, rewrites and several commits after the first fill
  std::size_t map_bytes = std::size_t{256} << 20;
};

/// Comparison functions for mdb_set_compare and mdb_set_dupsort.  They read only the bytes they are given.
inline constexpr int kComparators = 3;
MDB_cmp_func* comparator(int which) noexcept;

/// One environment or more of each kind; sizes and page sizes vary with `seed`.
std::vector<EnvSpec> catalogue(std::uint64_t seed);

/// Fewer, of 10 to 40 MiB each, most of it values on overflow pages: what is read ahead of in pieces.
std::vector<EnvSpec> large_catalogue(std::uint64_t seed);

/// Writes `spec` into the existing empty directory `dir` (data.mdb; the lock file is removed).
/// Throws std::runtime_error if LMDB refuses.
void generate(const LmdbApi& lmdb, const EnvSpec& spec, const std::string& dir);

/// Opens `spec` in `txn` with its comparators.  `extra_flags`: MDB_CREATE or 0.
int open_database(const LmdbApi& lmdb, MDB_txn* txn, const DbSpec& spec, unsigned extra_flags, MDB_dbi* dbi);

/// A key (or, in a database with duplicates, a value) such as generate() writes there; often one it did
/// write.
std::string random_key(const DbSpec& spec, Rng& rng);
std::string random_value(const DbSpec& spec, Rng& rng);

/// Inserts, rewrites and deletes about `steps` random records through a write transaction.
void scribble(const LmdbApi& lmdb, MDB_txn* txn, MDB_dbi dbi, const DbSpec& spec, Rng& rng, unsigned steps);

}  // namespace lmdbio::test
