// Random programs, one call at a time, each fitting the state that the previous ones left.
#pragma once

#include "tests/diff/executor.h"
#include "tests/support/rng.h"

namespace lmdbio::diff {

/// What decides a program.  The upper bits name a cell of the coverage table to dwell on, or nothing; so that
/// a campaign can go where it has been least and every program is still reproduced by one number.
class Seed {
 public:
  explicit Seed(std::uint64_t value) : value_(value) {}
  static Seed dwelling_on(const Cell& cell, std::uint64_t number);
  std::uint64_t value() const noexcept { return value_; }
  bool dwells() const noexcept { return (value_ >> 40) != 0; }
  Cell cell() const noexcept;

 private:
  std::uint64_t value_;
};

class Generator {
 public:
  Generator(Seed seed, Executor& executor);

  /// A feasible call.
  Call next();

 private:
  Call propose();
  Call dwell();
  Call open_env();
  Call begin();
  Call writer_on(int env);
  Call env_query();
  Call misuse();
  Call open_dbi(int txn);
  Call dbi_call();
  bool set_comparators(Call* c);
  Call open_cursor();
  Call renew_cursor();
  Call cursor_get(int cursor, int op);
  Call write_call();
  Call reach(int cursor, CursorState state);

  int pick_txn(TxnModel::Status status);
  int pick_cursor();
  int pick_open_env();
  MDB_dbi pick_dbi(int txn);
  int pick_op();
  const Contents* contents(int env, MDB_dbi dbi) const;
  const test::DbSpec* spec(int env, MDB_dbi dbi) const;
  std::string key_bytes(int env, MDB_dbi dbi);
  std::string data_bytes(int env, MDB_dbi dbi, const std::string& key);
  std::string near(std::string bytes);
  Arg output();

  Seed seed_;
  test::Rng rng_;
  Executor& executor_;
  std::vector<int> favourite_ops_;  // this program calls some operations more than others
  unsigned lifecycle_ = 10;         // per cent of calls that open, close and end handles
  unsigned writers_ = 0;            // per cent of calls that are commits of another process
  std::vector<int> named_places_;   // those of places_ that have named databases
  std::vector<int> places_;         // environments of the catalogue with a database of the kind to dwell on
};

}  // namespace lmdbio::diff
