// What a stock liblmdb keeps in its cursors, read (never called) from outside.
//
// The differential harness must know the exact state of the reference before each call: to leave out the
// calls on which stock is undefined, and to count calls by the state they met.  The structures below are
// those of LMDB 0.9.24 to 0.9.32 on 64-bit systems (the same in all of them) and of 1.0.1; only memory of a
// stock library is read.
#pragma once

#include <lmdb.h>

#include <cstddef>
#include <cstdint>

namespace lmdbio::diff {

/// Says of which release the stock libraries of this process are.  Before anything is read; at first 0.9.
void set_stock_release(bool is_10) noexcept;

/// A page: a header, then slots.
class StockPage {
 public:
  unsigned keys() const noexcept;
  bool leaf2() const noexcept;
  /// Flags of the node in slot `i` of a leaf that is not LEAF2.  REQUIRES: i < keys().
  unsigned node_flags(unsigned i) const noexcept;
  unsigned node_key_size(unsigned i) const noexcept;

 private:
  std::uint16_t at(std::size_t offset) const noexcept;
  std::size_t node(unsigned i) const noexcept;
};

inline constexpr unsigned kNodeSubDb = 2;
inline constexpr unsigned kNodeDups = 4;

struct StockDb {
  std::uint32_t pad;
  std::uint16_t flags;
  std::uint16_t depth;
  std::uint64_t branch_pages, leaf_pages, overflow_pages, entries, root;
};

struct StockDbx {
  MDB_val name;
  MDB_cmp_func* cmp;
  MDB_cmp_func* dcmp;
  void* rel;
  void* relctx;
};

struct StockXcursor;

struct StockCursor {
  static constexpr unsigned kInitialized = 1;
  static constexpr unsigned kEof = 2;

  StockCursor* next;
  StockCursor* backup;
  StockXcursor* xcursor;
  MDB_txn* txn;
  MDB_dbi dbi;
  StockDb* db;
  StockDbx* dbx;
  unsigned char* dbflag;
  std::uint16_t snum;
  std::uint16_t top;
  std::uint32_t flags;
  StockPage* page[32];
  std::uint16_t index[32];

  bool initialized() const noexcept { return (flags & kInitialized) != 0; }
  bool eof() const noexcept { return (flags & kEof) != 0; }
  const StockPage& leaf() const noexcept { return *page[top]; }
  unsigned slot() const noexcept { return index[top]; }
  bool in_page() const noexcept { return slot() < leaf().keys(); }
  /// The node under the cursor holds duplicates.  REQUIRES: initialized().
  bool on_dups() const noexcept {
    return in_page() && !leaf().leaf2() && (leaf().node_flags(slot()) & kNodeDups) != 0;
  }
  bool at_first() const noexcept;
  bool at_last() const noexcept;
};

/// A cursor, which is longer by a pointer in 1.0, and what follows it.
struct StockXcursor {
  StockCursor cursor;

  StockDb& db() noexcept;
  const StockDbx& dbx() const noexcept;
};

/// A copy of some members of a transaction.
struct StockTxn {
  const StockDbx* dbxs;
  const StockDb* dbs;
  const unsigned char* dbflags;
  MDB_dbi numdbs;
};

inline const StockCursor& stock(const MDB_cursor* c) noexcept {
  return *reinterpret_cast<const StockCursor*>(c);
}
StockTxn stock(const MDB_txn* t) noexcept;

/// The record of a cursor's sub-database is uninitialised memory until stock first enters a list of
/// duplicates. The harness writes a recognisable root there after each open.
void mark_no_subdatabase(MDB_cursor* c) noexcept;
bool has_subdatabase(const StockCursor& c) noexcept;

}  // namespace lmdbio::diff
