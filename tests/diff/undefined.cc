#include "tests/diff/undefined.h"

namespace lmdbio::diff {
namespace {

// mdb_cursor_get of 0.9.24 differs from the newest one; every version between counts as old.
constexpr int kFirstNewPatch = 31;

constexpr const char* kNoXcursor = "the handle became DUPSORT after the cursor was opened: null sub-cursor";
constexpr const char* kPastLast = "the cursor is past the last entry of its page: reads a slot that is not there";
constexpr const char* kNoSubDb = "the sub-cursor was never set: its record is uninitialised";
constexpr const char* kNullData = "DUPFIXED and no data pointer: writes through null";
constexpr const char* kNoComparator = "no comparison function is set";

bool dupsort(const StockCursor& c) { return (c.db->flags & MDB_DUPSORT) != 0; }
bool dupfixed(const StockCursor& c) { return (c.db->flags & MDB_DUPFIXED) != 0; }
bool sub_initialized(const StockCursor& c) { return c.xcursor != nullptr && c.xcursor->cursor.initialized(); }

/// The sub-cursor of an entry with duplicates is to move.
const char* undefined_sub_step(const StockCursor& c, bool no_data, bool forward, bool old) {
  if (!sub_initialized(c)) {
    if (!has_subdatabase(c)) return kNoSubDb;
    if (!no_data || !dupfixed(c)) return nullptr;
    // First and last are guarded in new versions; a step back goes on to the unguarded part.
    return old || !forward ? kNullData : nullptr;
  }
  if (!no_data || !dupfixed(c)) return nullptr;
  const StockCursor& s = c.xcursor->cursor;
  const bool stays = forward ? s.eof() && s.slot() + 1 >= s.leaf().keys() : false;
  return stays ? nullptr : kNullData;
}

const char* undefined_next(const StockCursor& c, int op, bool no_data, bool old) {
  if (!c.initialized()) return nullptr;
  if (c.eof() && c.slot() + 1 >= c.leaf().keys()) return nullptr;
  if (!dupsort(c)) return nullptr;
  if (c.xcursor == nullptr) return kNoXcursor;
  if (!c.in_page()) return kPastLast;
  if (c.on_dups() && op != MDB_NEXT_NODUP) return undefined_sub_step(c, no_data, true, old);
  return nullptr;
}

const char* undefined_prev(const StockCursor& c, int op, bool no_data, bool old) {
  if (!c.initialized()) return old && dupsort(c) && c.db->root != ~std::uint64_t{0} ? kPastLast : nullptr;
  if (!dupsort(c)) return nullptr;
  if (c.xcursor == nullptr) return kNoXcursor;
  if (!c.in_page()) return old ? kPastLast : nullptr;
  if (c.on_dups() && op != MDB_PREV_NODUP) return undefined_sub_step(c, no_data, false, old);
  return nullptr;
}

}  // namespace

const char* undefined_cursor_get(const StockCursor& c, const Call& call, int patch) noexcept {
  const bool old = patch < kFirstNewPatch;
  const bool no_data = call.data.null;
  // The handle was closed and given to another database in this transaction: its record changed under the cursor.
  if (c.dbi >= 2 && c.xcursor == nullptr && dupsort(c) && op_column(call.op) < kOps - 1) return kNoXcursor;
  switch (call.op) {
    case MDB_NEXT:
    case MDB_NEXT_DUP:
    case MDB_NEXT_NODUP:
      return undefined_next(c, call.op, no_data, old);
    case MDB_NEXT_MULTIPLE:
      if (no_data || !dupfixed(c)) return nullptr;
      if (c.xcursor == nullptr) return kNoXcursor;
      return undefined_next(c, MDB_NEXT_DUP, no_data, old);
    case MDB_PREV:
    case MDB_PREV_DUP:
    case MDB_PREV_NODUP:
      return undefined_prev(c, call.op, no_data, old);
    case MDB_GET_MULTIPLE:
    case MDB_PREV_MULTIPLE:
      if (no_data || !dupfixed(c)) return nullptr;
      return c.xcursor == nullptr ? kNoXcursor : nullptr;
    case MDB_SET:
    case MDB_SET_KEY:
    case MDB_SET_RANGE:
      return !call.key.null && c.dbx->cmp == nullptr ? kNoComparator : nullptr;
    case MDB_GET_BOTH:
    case MDB_GET_BOTH_RANGE:
      if (call.key.null || no_data || c.xcursor == nullptr) return nullptr;
      if (c.dbx->cmp == nullptr || c.dbx->dcmp == nullptr || c.xcursor->dbx.cmp == nullptr) return kNoComparator;
      return nullptr;
    default:
      return nullptr;
  }
}

const char* undefined_cursor_count(const StockCursor& c) noexcept {
  if (c.xcursor == nullptr || !c.initialized() || c.snum == 0) return nullptr;
  return !c.in_page() && !c.eof() ? kPastLast : nullptr;
}

}  // namespace lmdbio::diff
