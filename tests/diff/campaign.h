// Many programs, run in worker processes, so that a crash costs one program and is reported with its seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/diff/call.h"
#include "tests/diff/coverage.h"
#include "tests/diff/databases.h"

namespace lmdbio::diff {

struct Options {
  std::string reference = "liblmdb.so.0";  ///< a stock LMDB 0.9 or 1.0
  std::string tested;                      ///< empty: the reference against itself
  std::string tested_on;                   ///< LMDBIO_STOCK_LIB for the library under test
  std::string other;                       ///< a second stock version, or empty
  std::string dir;            ///< for databases; empty: one below the system's temporary directory
  std::uint64_t seed = 1;     ///< of the first program
  std::uint64_t seeds = 200;  ///< at least so many programs
  std::uint64_t calls = 0;    ///< at least so many calls
  double seconds = 0;         ///< at most; 0: no limit
  unsigned length = 400;      ///< calls of a program
  unsigned min_cell = 0;      ///< at least so many calls in each cell of the coverage table
  unsigned jobs = 1;
  double hang_seconds = 60;     ///< a call that takes longer has failed
  std::uint64_t catalogue = 1;  ///< seed of the databases
  bool large = false;           ///< databases of tens of MiB
  unsigned max_failures = 1;
  int sabotage = -1;
  std::uint64_t replay = 0;  ///< a seed: run this program alone
  bool replaying = false;
  std::string program;  ///< a file written by --shrink: run it
  bool shrink = false;
  bool foreign_order = false;  ///< as Executor::foreign_order
  bool tell = false;           ///< as Executor::prefetch
  std::string json;
  bool quiet = false;
};

struct Failure {
  std::uint64_t seed = 0;
  std::uint32_t call = 0;
  int signal = 0;  ///< 0: a difference
  int side = 0;    ///< the library that was running when it crashed
  char text[1500] = {};
};

/// Everything that one run needs and its processes share.
class Campaign {
 public:
  explicit Campaign(Options options);
  ~Campaign();
  Campaign(const Campaign&) = delete;
  Campaign& operator=(const Campaign&) = delete;

  /// Runs until the options are content.  The failures found, at most max_failures.
  std::vector<Failure> run();

  /// Runs one program in a process of its own.  False if it fails; then *failure says how.  `journal`, if not
  /// null, receives the calls that were made.
  bool run_seed(std::uint64_t seed, Failure* failure, Program* journal);
  bool run_program(const Program& program, Failure* failure, Program* journal);

  const Coverage& coverage() const noexcept;
  const Options& options() const noexcept { return options_; }
  const std::vector<Environment>& environments() const noexcept { return environments_; }
  /// The command that runs this program again.
  std::string command(std::uint64_t seed) const;
  std::uint64_t started() const noexcept;  ///< programs begun
  double seconds() const noexcept { return seconds_; }

 private:
  struct Shared;
  struct Worker;
  [[noreturn]] void work(int slot);
  std::uint64_t choose_seed(std::uint64_t index) const;
  bool enough() const;
  void collect(Worker& worker, int status, std::vector<Failure>* failures);
  bool in_child(int slot, const std::string& journal_path, Failure* failure, Program* journal,
                std::uint64_t seed, const Program* program);

  Options options_;
  std::string dir_;
  bool remove_dir_ = false;
  test::LmdbApi reference_;
  test::LmdbApi other_;
  std::vector<Environment> environments_;
  Shared* shared_ = nullptr;
  double seconds_ = 0;
};

}  // namespace lmdbio::diff
