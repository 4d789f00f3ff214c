// The calls on which stock LMDB is undefined: it dereferences a null pointer, reads a slot that a page does
// not have, or uses a record that it never filled in.  Decided from the exact state of a stock cursor.
#pragma once

#include "tests/diff/call.h"
#include "tests/diff/stock_state.h"

namespace lmdbio::diff {

enum class Undefined : std::uint8_t {
  kNo,
  kNoXcursor,     // DUPSORT was added to the handle after the cursor was opened: null sub-cursor
  kPastLast,      // the cursor is past the last entry of its page: reads a slot that is not there
  kNoSubDb,       // the sub-cursor was never set since open, or not in this snapshot: its record is no record
  kNullData,      // DUPFIXED and no data pointer: writes through null
  kNoComparator,  // no comparison function is set: calls null
  kStaleLookup,   // looks up a name in a main database flagged DUPSORT: assertion
  kRenewDupsort,  // renews a cursor without sub-cursor on a DUPSORT database: assertion
  kSecondVal,     // MDB_MULTIPLE reads a second MDB_val
  kVersions,      // defined, but not the same in all versions of stock
  kForeignOrder,  // defined, but the result is where stock's binary search happens to end (documented misuse)
  kBeforeValue,   // integers of an odd size, of none or of two sizes: reads bytes around the program's value
  kFreedTxn,      // closes a cursor whose transaction was freed: 1.0 reads the transaction
};
inline constexpr int kUndefined = 13;
const char* name_of(Undefined u) noexcept;

/// Why a stock library of level `patch` (LmdbApi::level) must not be asked `call` on a cursor in state `c`.
/// Arguments other than null pointers are the business of the caller (sizes of integer keys, see
/// executor.cc).
Undefined undefined_cursor_get(const StockCursor& c, const Call& call, int patch) noexcept;
Undefined undefined_cursor_count(const StockCursor& c) noexcept;

/// The first patch level whose cursors behave as the newest version's.
inline constexpr int kFirstNewPatch = 31;
/// True if 0.9.24 and the newest version treat `call` differently in this state.
bool versions_differ(const StockCursor& c, const Call& call) noexcept;

}  // namespace lmdbio::diff
