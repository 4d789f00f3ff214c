#include "tests/diff/undefined.h"

namespace lmdbio::diff {
namespace {

constexpr const char* kTexts[kUndefined] = {
    "defined",
    "the handle became DUPSORT after the cursor was opened: null sub-cursor",
    "the cursor is past the last entry of its page: reads a slot that is not there",
    "the sub-cursor was never set since the open, or in another snapshot: uninitialised or stale record",
    "DUPFIXED and no data pointer: writes through null",
    "no comparison function is set: calls null",
    "looks up a name in a main database flagged DUPSORT: assertion",
    "renews a cursor without sub-cursor on a DUPSORT database: assertion",
    "MDB_MULTIPLE reads a second MDB_val",
    "defined, but not the same in all versions of stock",
    "the comparison function, or the size of an integer key, does not fit the order of the database",
    "an integer duplicate of an odd or no size: reads the bytes before the program's value",
    "closes a cursor whose transaction was freed: reads the transaction (1.0)"};

bool dupsort(const StockCursor& c) { return (c.db->flags & MDB_DUPSORT) != 0; }
bool dupfixed(const StockCursor& c) { return (c.db->flags & MDB_DUPFIXED) != 0; }
bool sub_initialized(const StockCursor& c) { return c.xcursor != nullptr && c.xcursor->cursor.initialized(); }

/// The sub-cursor of an entry with duplicates is to move.
Undefined undefined_sub_step(const StockCursor& c, bool no_data, bool forward, bool old) {
  if (!sub_initialized(c)) {
    if (!has_subdatabase(c)) return Undefined::kNoSubDb;
    if (!no_data || !dupfixed(c)) return Undefined::kNo;
    // First and last are guarded in new versions; a step back goes on to the unguarded part.
    return old || !forward ? Undefined::kNullData : Undefined::kNo;
  }
  if (!no_data || !dupfixed(c)) return Undefined::kNo;
  const StockCursor& s = c.xcursor->cursor;
  const bool stays = forward ? s.eof() && s.slot() + 1 >= s.leaf().keys() : false;
  return stays ? Undefined::kNo : Undefined::kNullData;
}

Undefined undefined_next(const StockCursor& c, int op, bool no_data, bool old) {
  if (!c.initialized()) return Undefined::kNo;
  if (c.eof() && c.slot() + 1 >= c.leaf().keys()) return Undefined::kNo;
  if (!dupsort(c)) return Undefined::kNo;
  if (c.xcursor == nullptr) return Undefined::kNoXcursor;
  if (!c.in_page()) return Undefined::kPastLast;
  if (c.on_dups() && op != MDB_NEXT_NODUP) return undefined_sub_step(c, no_data, true, old);
  return Undefined::kNo;
}

Undefined undefined_prev(const StockCursor& c, int op, bool no_data, bool old) {
  if (!c.initialized())
    return old && dupsort(c) && c.db->root != ~std::uint64_t{0} ? Undefined::kPastLast : Undefined::kNo;
  if (!dupsort(c)) return Undefined::kNo;
  if (c.xcursor == nullptr) return Undefined::kNoXcursor;
  if (!c.in_page()) return old ? Undefined::kPastLast : Undefined::kNo;
  if (c.on_dups() && op != MDB_PREV_NODUP) return undefined_sub_step(c, no_data, false, old);
  return Undefined::kNo;
}

}  // namespace

const char* name_of(Undefined u) noexcept { return kTexts[static_cast<std::size_t>(u)]; }

Undefined undefined_cursor_get(const StockCursor& c, const Call& call, int patch) noexcept {
  const bool old = patch < kFirstNewPatch;
  const bool no_data = call.data.null;
  // The handle was closed and given to another database in this transaction: its record changed under the
  // cursor.
  if (c.dbi >= 2 && c.xcursor == nullptr && dupsort(c) && op_column(call.op) < kOps - 1)
    return Undefined::kNoXcursor;
  // The handle was closed by the reset of its transaction: the record has lost its flags, but not its root.
  if (c.dbi >= 2 && c.xcursor != nullptr && !dupsort(c) && op_column(call.op) < kOps - 1)
    return Undefined::kNoSubDb;
  switch (call.op) {
    case MDB_NEXT:
    case MDB_NEXT_DUP:
    case MDB_NEXT_NODUP:
      return undefined_next(c, call.op, no_data, old);
    case MDB_NEXT_MULTIPLE:
      if (no_data || !dupfixed(c)) return Undefined::kNo;
      if (c.xcursor == nullptr) return Undefined::kNoXcursor;
      return undefined_next(c, MDB_NEXT_DUP, no_data, old);
    case MDB_PREV:
    case MDB_PREV_DUP:
    case MDB_PREV_NODUP:
      return undefined_prev(c, call.op, no_data, old);
    case MDB_GET_MULTIPLE:
    case MDB_PREV_MULTIPLE:
      if (no_data || !dupfixed(c)) return Undefined::kNo;
      return c.xcursor == nullptr ? Undefined::kNoXcursor : Undefined::kNo;
    case MDB_SET:
    case MDB_SET_KEY:
    case MDB_SET_RANGE:
      return !call.key.null && c.dbx->cmp == nullptr ? Undefined::kNoComparator : Undefined::kNo;
    case MDB_GET_BOTH:
    case MDB_GET_BOTH_RANGE:
      if (call.key.null || no_data || c.xcursor == nullptr) return Undefined::kNo;
      if (c.dbx->cmp == nullptr || c.dbx->dcmp == nullptr || c.xcursor->dbx().cmp == nullptr)
        return Undefined::kNoComparator;
      if ((c.db->flags & (MDB_INTEGERDUP | MDB_DUPFIXED)) == MDB_INTEGERDUP &&
          (call.data.bytes.empty() || call.data.bytes.size() % 2 != 0))
        return Undefined::kBeforeValue;
      return Undefined::kNo;
    default:
      return Undefined::kNo;
  }
}

Undefined undefined_cursor_count(const StockCursor& c) noexcept {
  if (c.xcursor == nullptr || !c.initialized() || c.snum == 0) return Undefined::kNo;
  return !c.in_page() && !c.eof() ? Undefined::kPastLast : Undefined::kNo;
}

bool versions_differ(const StockCursor& c, const Call& call) noexcept {
  switch (call.op) {
    case MDB_FIRST_DUP:
    case MDB_LAST_DUP:  // new versions clear the cursor's end-of-data flag, on which MDB_NEXT and others
                        // depend
      return !call.data.null && c.xcursor != nullptr && c.initialized() && c.eof();
    case MDB_FIRST:
    case MDB_LAST:
    case MDB_NEXT:
    case MDB_NEXT_DUP:
    case MDB_NEXT_NODUP:
    case MDB_PREV:
    case MDB_PREV_DUP:
    case MDB_PREV_NODUP:
    case MDB_SET:
    case MDB_SET_KEY:
    case MDB_SET_RANGE:  // old versions do not set the sub-cursor unless data is wanted
      return call.data.null && dupsort(c);
    default:
      return false;
  }
}

}  // namespace lmdbio::diff
