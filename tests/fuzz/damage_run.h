// Damaged databases by number, and what a library makes of them: in children that may die.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/fuzz/call_sequence.h"
#include "tests/fuzz/mutate_file.h"

namespace lmdbio::test {

/// A family of damages; each database gets the next family in turn.
enum class Damage : std::uint8_t { kField, kTruncated, kFields, kBytes, kHealthy };
inline constexpr std::array kDamageNames = {"field", "truncated", "fields", "bytes", "healthy"};

struct Database {
  FileBytes bytes;
  Variant variant;
  std::string what;  ///< for people
};

/// The healthy files of a corpus and everything that is made of them.  Database n is the same everywhere.
///
/// kField goes through every value that values_for() has for every field of every base, kTruncated through
/// every length of every base, both in a scattered order; the other two are random.
class Catalogue {
 public:
  /// Reads DIR/healthy-*.  Throws std::runtime_error if there is none.
  explicit Catalogue(const std::string& dir);

  std::size_t bases() const { return bases_.size(); }
  std::uint64_t single_fields() const { return changes_.size(); }
  std::uint64_t lengths() const { return lengths_; }
  static Damage kind_of(std::uint64_t n) { return static_cast<Damage>(n % 4); }
  Database damaged(std::uint64_t n, std::uint64_t seed) const;
  Database healthy(std::size_t base) const;

 private:
  struct Base {
    std::string name;
    FileBytes bytes;
    std::uint64_t first_length;
  };
  struct Change {
    std::uint32_t base;
    Field field;
    std::uint64_t value;
  };
  std::vector<Base> bases_;
  std::vector<Change> changes_;
  std::uint64_t lengths_ = 0;
};

enum class Ending : std::uint8_t { kFine, kDamageReported, kUnbounded, kSignal, kTimeout };
inline constexpr std::array kEndingNames = {"no damage seen", "damage reported", "unbounded", "signal",
                                            "timeout"};

struct Case {
  Ending ending = Ending::kFine;
  int signal = 0;
  Call call = Call::kTouch;  ///< in which it died
  std::uint64_t digest = 0;  ///< of what was read, if it ended by itself
};

struct Report {
  std::vector<Case> cases;
  std::map<std::pair<Call, int>, std::uint64_t> codes;
  std::uint64_t calls = 0;
  std::uint64_t longest_ns = 0, longest_database = 0;
  Call longest_call = Call::kTouch;
  /// Died among others in one process, but not alone: their neighbour's work.
  std::vector<std::uint64_t> not_alone;
};

struct RunOptions {
  unsigned timeout_s = 10;
  unsigned batch = 32;  ///< databases per child
  std::function<void(std::uint64_t done)> progress;
};

/// Runs `count` databases, the n-th of which is `make(n)`.  The caller has one thread.  Throws
/// std::runtime_error if the machine refuses.
Report run_databases(std::uint64_t count, const std::function<Database(std::uint64_t)>& make,
                     const RunOptions& options);

/// One database in this process, each call printed; a signal is this process's.
Outcome run_here(const Database& database);

}  // namespace lmdbio::test
