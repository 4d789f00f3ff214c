// Runs one program at the same time on a reference library, a library under test and perhaps a second stock
// one, and compares them after every call.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "tests/diff/call.h"
#include "tests/diff/coverage.h"
#include "tests/diff/databases.h"
#include "tests/diff/undefined.h"
#include "tests/diff/writer.h"

namespace lmdbio::diff {

inline constexpr int kEnvSlots = 2;
inline constexpr int kTxnSlots = 4;
inline constexpr int kCursorSlots = 8;

enum class Role { kReference, kTested, kOtherStock };

// ---- what the harness knows of the handles; the same for all libraries ----

struct HandleModel {  // a number that dbi_open gave
  enum class Status { kNever, kOpen, kClosed, kOpenerAborted, kOpenerReset };
  Status status = Status::kNever;
  std::string name;
  int db = -1;                ///< index into Environment::dbs; -1: a name that the catalogue does not have
  int opened_by = -1;         ///< transaction slot, until that ends
  std::uint64_t since = 0;    ///< clock when it became visible to later transactions
  std::uint64_t changed = 0;  ///< clock of the last open or close
  unsigned compared = 0;      ///< comparators that the program set since: 1 keys, 2 values
  bool integers = false;      ///< some database under this number had integer keys or duplicates
};

struct EnvModel {
  bool open = false;
  int which = 0;  ///< index into the catalogue
  unsigned flags = 0;
  unsigned max_dbs = 0;
  std::vector<HandleModel> handles;
  std::uint64_t map_era = 0;  ///< clock when the file was last mapped
  bool locks_lost = false;    ///< the same file was open twice and one of them is closed
};

struct TxnModel {
  enum class Status { kNone, kActive, kReset };
  Status status = Status::kNone;
  int env = 0;
  std::uint64_t serial = 0;  ///< of the object; a new one for each begin
  std::uint64_t era = 0;     ///< clock of begin or the last renew
  std::uint64_t txnid = 0;
};

struct CursorModel {
  bool open = false;
  int env = 0;
  int txn = 0;
  std::uint64_t txn_serial = 0;
  std::uint64_t bound = 0;  ///< clock of open or the last renew
  std::uint64_t txnid = 0;
  std::uint64_t map_era = 0;
  MDB_dbi dbi = 0;
  bool after_failure = false;
  bool between = false;
  bool renewed_newer = false;
  bool retired = false;  ///< the tested library followed the other version: unusable until renewed
};

struct Model {
  EnvModel env[kEnvSlots];
  TxnModel txn[kTxnSlots];
  CursorModel cursor[kCursorSlots];
  std::uint64_t clock = 1;
};

/// What one library answered.
struct Answer {
  int rc = 0;
  bool has_key = false, has_data = false;
  MDB_val key{}, data{};
  std::uint64_t number = 0;
  std::string text;
};

struct Held {  // a value that a transaction gave out
  const void* bytes;
  std::size_t size;
  std::size_t hash;
};

struct Side {
  const test::LmdbApi* lmdb = nullptr;
  std::string name;
  Role role = Role::kReference;
  std::string dir;                  ///< copies live in <dir>/<number of the environment>
  std::vector<char> copy_is_clean;  ///< by environment
  bool dropped = false;             ///< differed (a stock version may): idle until the program ends
  MDB_env* env[kEnvSlots] = {};
  MDB_txn* txn[kTxnSlots] = {};
  MDB_cursor* cursor[kCursorSlots] = {};
  bool cursor_differs[kCursorSlots] = {};  ///< not asked until renewed
  std::vector<Held> held[kTxnSlots];
};

class Executor {
 public:
  /// sides[0] is the reference and must be a stock LMDB (its cursors are looked into).  If it is an old
  /// one and there is no other stock version, the library under test may behave as a newer one: calls on
  /// which versions are known to differ are then left out.
  Executor(std::vector<Side> sides, const std::vector<Environment>& environments, Writer& writer,
           Coverage& coverage);

  void start_program();
  /// Ends all transactions and closes everything, comparing as it goes.
  bool finish_program();

  /// False: the handles are not there, or stock would be undefined (counted).
  bool feasible(const Call& call);
  /// Runs a feasible call.  False if the libraries differ; failure() says how.
  bool run(const Call& call);
  const std::string& failure() const noexcept { return failure_; }

  const Model& model() const noexcept { return model_; }
  const std::vector<Environment>& environments() const noexcept { return environments_; }
  CursorState state_of(int cursor) const;
  bool cursor_usable(int cursor) const;
  test::DbKind kind_of(int env, MDB_dbi dbi) const;
  /// Index into Environment::dbs, or -1.
  int db_of(int env, MDB_dbi dbi) const;
  DbiState dbi_state(int env, int txn, MDB_dbi dbi) const;
  /// Include searches by an order that is not the database's: comparable with a library only if it probes the
  /// same nodes in the same sequence as stock.
  bool foreign_order = false;
  /// lmdbio_prefetch of the library under test, or null: before some lookups it is told of them and of
  /// others, and its copy of the file leaves the page cache as far as it can.
  int (*prefetch)(MDB_txn*, MDB_dbi, const MDB_val*, std::size_t) = nullptr;
  /// For crash reports: called before each call, and the index of the library that is being called.
  std::function<void(const Call&)> before_call;
  std::atomic<int>* running_side = nullptr;

 private:
  bool handles_exist(const Call& call) const;
  bool integers_fit(const Call& call) const;
  Undefined stock_undefined(const Side& side, const Call& call) const;
  bool order_fits(const Call& call) const;
  bool compares_keys(const Call& call) const;

  Answer call_side(Side& side, const Call& call);
  Answer env_call(Side& side, const Call& call);
  Answer txn_call(Side& side, const Call& call);
  Answer data_call(Side& side, const Call& call);
  Answer cursor_call(Side& side, const Call& call);
  Answer null_call(Side& side, const Call& call);
  int open_env(Side& side, const Call& call, std::string* text);

  std::string difference(const Call& call, const Answer& a, const Answer& b) const;
  void update_model(const Call& call, const Answer& a);
  void update_handles(const Call& call, const Answer& a);
  void end_handles_of(int txn, HandleModel::Status status);
  void hold(Side& side, int txn, const Answer& a);
  bool values_still_there(int txn);
  bool settle(const Call& call, const std::vector<Answer>& answers);
  void count(const Call& call);
  bool run_writer(const Call& call);
  void tell_ahead(const Side& side, const Call& call);

  std::vector<Side> sides_;
  const std::vector<Environment>& environments_;
  bool only_common_;  ///< an old reference alone: leave out what versions do differently
  Writer& writer_;
  Coverage& coverage_;
  Model model_;
  std::string failure_;
  std::vector<char> key_buffer_, data_buffer_;
  CursorState state_before_ = CursorState::kUnset;
  std::vector<Answer> answers_;
};

}  // namespace lmdbio::diff
