// The calls on which stock LMDB is undefined: it dereferences a null pointer, reads a slot that a page does not
// have, or uses a record that it never filled in.  Decided from the exact state of a stock cursor.
#pragma once

#include "tests/diff/call.h"
#include "tests/diff/stock_state.h"

namespace lmdbio::diff {

/// Why a stock library of patch level 0.9.`patch` must not be asked `call` on a cursor in state `c`, or nullptr.
/// Arguments other than null pointers are the business of the caller (sizes of integer keys, see executor.cc).
const char* undefined_cursor_get(const StockCursor& c, const Call& call, int patch) noexcept;
const char* undefined_cursor_count(const StockCursor& c) noexcept;

}  // namespace lmdbio::diff
