// A program: a list of API calls on numbered handles.  Plain data, so that it can be kept, cut and printed.
#pragma once

#include <lmdb.h>

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace lmdbio::diff {

enum class Fn : std::uint8_t {
  kEnvOpen,  // create, settings, open; number: environment of the catalogue, op: max dbs, dbi: max readers
  kEnvClose,
  kEnvInfo,
  kEnvStat,
  kEnvFlags,
  kEnvPath,
  kEnvLimits,
  kEnvSetFlags,
  kEnvSetMapsize,
  kEnvSync,
  kEnvUserctx,
  kEnvLateSettings,
  kReaderList,
  kReaderCheck,
  kTxnBegin,
  kTxnBeginWrite,
  kTxnBeginNested,
  kTxnRenew,
  kTxnReset,
  kTxnAbort,
  kTxnCommit,
  kTxnId,
  kTxnEnv,
  kDbiOpen,
  kDbiClose,
  kDbiFlags,
  kStat,
  kSetCompare,
  kSetDupsort,
  kCmp,
  kDcmp,
  kGet,
  kPut,
  kDel,
  kDrop,
  kCursorOpen,
  kCursorClose,
  kCursorRenew,
  kCursorCount,
  kCursorTxn,
  kCursorDbi,
  kCursorGet,
  kCursorPut,
  kCursorDel,
  kNullHandle,  // op: one of the calls that stock answers for a null handle or pointer
  kWriter,      // another process commits; number: what
};
inline constexpr int kFns = static_cast<int>(Fn::kWriter) + 1;
const char* name_of(Fn fn) noexcept;

/// An MDB_val argument: a null pointer, or these bytes.
struct Arg {
  bool null = true;
  std::string bytes;
};

struct Call {
  Fn fn = Fn::kEnvInfo;
  int env = 0;
  int txn = 0;
  int cursor = 0;
  MDB_dbi dbi = 0;
  int op = 0;
  unsigned flags = 0;
  std::uint64_t number = 0;
  bool has_name = false;
  std::string name;
  Arg key;
  Arg data;
};

using Program = std::vector<Call>;

/// Cursor operations 0..18 and one column for all numbers that are none.
inline constexpr int kOps = 20;
const char* op_name(int op) noexcept;
inline int op_column(int op) noexcept { return op >= 0 && op < kOps - 1 ? op : kOps - 1; }

/// One line, as one would write it in C.
std::string to_c(const Call& call);

void write_call(std::ostream& out, const Call& call);
bool read_call(std::istream& in, Call* call);

}  // namespace lmdbio::diff
