// Cursors: a place in a database with its duplicates, as programs hold it.
#pragma once

#include <lmdb.h>

#include <cstdint>
#include <memory>

#include "lmdbio/db/txn.h"
#include "lmdbio/db/walker.h"

namespace lmdbio::db {

/// A cursor as programs hold it.  It belongs to a transaction until that one ends, and may be renewed to
/// another one.  The transaction does not know its cursors: closing one needs no care for the others.  The
/// Txn's memory must outlive the cursor's calls, not its transaction.  Rules of threads: its transaction's.
class Cursor {
 public:
  /// Looks up the record of the database if that is stale, which may run a user's comparator: callers do it
  /// before, where an exception must not meet a cleanup.  `dups`: as wants_dups says; owned.
  Cursor(Txn& txn, MDB_dbi dbi);
  Cursor(Txn& txn, MDB_dbi dbi, std::unique_ptr<Walker> dups) noexcept;
  Cursor(const Cursor&) = delete;
  Cursor& operator=(const Cursor&) = delete;
  static bool wants_dups(const Txn& txn, MDB_dbi dbi) noexcept {
    return (txn.record_now(dbi).flags & MDB_DUPSORT) != 0;
  }

  /// mdb_cursor_renew, after stock's checks.  False: out of memory, nothing changed.
  bool renew(Txn& txn);
  /// mdb_cursor_get.  May run a user's comparator, which may throw or longjmp: the cursor can then be closed.
  [[gnu::always_inline]] Status get(MDB_val* key, MDB_val* data, MDB_cursor_op op) {
    Txn* const txn = txn_;
    if (txn->stamp().bits != stamp_.bits) [[unlikely]] {
      if (!still_attached()) return Status::from_mdb(MDB_BAD_TXN);
    }
    std::size_t bytes;
    if (op == MDB_NEXT) [[likely]] {
      if (main_.step_in_leaf<1>(key, data, bytes)) [[likely]]
        return counted(op, bytes);
    } else if (op == MDB_PREV) {
      if (main_.step_in_leaf<-1>(key, data, bytes)) return counted(op, bytes);
    } else if (op == MDB_GET_CURRENT) {
      if (main_.step_in_leaf<0>(key, data, bytes)) return counted(op, bytes);
    }
    return get_slow(key, data, op);
  }
  Status count(std::size_t& n);
  /// Null once the transaction's memory went to another use.
  Txn* txn() const noexcept { return txn_->stamp().use() == stamp_.use() ? txn_ : nullptr; }
  MDB_dbi dbi() const noexcept { return dbi_; }
  bool has_dups() const noexcept { return main_.has_dups(); }

 private:
  Status counted(MDB_cursor_op op, std::size_t bytes) noexcept {
    Counters& n = txn_->counters();
    ++n.cursor_op[op];
    n.bytes += bytes;
    return {};
  }
  [[gnu::noinline]] Status get_slow(MDB_val* key, MDB_val* data, MDB_cursor_op op);
  [[gnu::noinline]] bool still_attached() noexcept;
  Status dispatch(MDB_val* key, MDB_val* data, MDB_cursor_op op);
  void attach(Txn& txn) noexcept;

  Txn* txn_;
  Txn::Stamp stamp_;
  MDB_dbi dbi_;
  std::uint32_t dups_window_ = 0;  ///< number of the window that dups_ points into
  Walker main_;
  std::unique_ptr<Walker> dups_;
  std::unique_ptr<Readahead> readahead_;
};

}  // namespace lmdbio::db
