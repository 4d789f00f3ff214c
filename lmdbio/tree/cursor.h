// Cursors as programs hold them: a position in a database and in the duplicates of its key.
#pragma once

#include <lmdb.h>

#include <cstdint>
#include <memory>

#include "lmdbio/tree/txn.h"
#include "lmdbio/tree/walker.h"

namespace lmdbio::tree {

/// Implements a program's MDB_cursor.  A cursor belongs to one transaction until the transaction ends.
/// renew() attaches the cursor to another transaction.  A transaction has no list of its cursors, so they may
/// be closed in any order.  The Txn object must exist during the cursor's calls, even if its transaction has
/// ended.  Threads: as for the transaction.
class Cursor {
 public:
  /// The first constructor looks up the record of the database if it is stale.  This may run a user's
  /// comparator, which may throw.  The second constructor does no lookup: its callers have already done it,
  /// where an exception skips no cleanup.  `dups` is owned, and set if wants_dups() is true.
  Cursor(Txn& txn, MDB_dbi dbi);
  Cursor(Txn& txn, MDB_dbi dbi, std::unique_ptr<Walker> dups) noexcept;
  Cursor(const Cursor&) = delete;
  Cursor& operator=(const Cursor&) = delete;
  static bool wants_dups(const Txn& txn, MDB_dbi dbi) noexcept {
    return (txn.record_now(dbi).flags & MDB_DUPSORT) != 0;
  }

  /// Implements mdb_cursor_renew after stock's checks.  Returns false if memory is short; nothing has changed
  /// then.
  bool renew(Txn& txn);
  /// Implements mdb_cursor_get.  May run a user's comparator, which may throw or longjmp; the cursor can then
  /// still be closed.
  [[gnu::always_inline]] Status get(MDB_val* key, MDB_val* data, MDB_cursor_op op) {
    Txn* const txn = txn_;
    if (txn->stamp().bits != stamp_.bits) [[unlikely]] {
      if (!still_attached()) return Status::from_mdb(MDB_BAD_TXN);
    }
    using format::Version;
    std::size_t bytes;
    if (op == MDB_NEXT) [[likely]] {
      if (main_.step_in_leaf<1, Version::v09>(key, data, bytes)) [[likely]]
        return counted(op, bytes);
      if (main_.step_in_leaf<1, Version::v10>(key, data, bytes)) return counted(op, bytes);
    } else if (op == MDB_PREV) {
      if (main_.step_in_leaf<-1, Version::v09>(key, data, bytes)) return counted(op, bytes);
      if (main_.step_in_leaf<-1, Version::v10>(key, data, bytes)) return counted(op, bytes);
    } else if (op == MDB_GET_CURRENT) {
      if (main_.step_in_leaf<0, Version::v09>(key, data, bytes)) return counted(op, bytes);
      if (main_.step_in_leaf<0, Version::v10>(key, data, bytes)) return counted(op, bytes);
    }
    return get_slow(key, data, op);
  }
  Status count(std::size_t& n);
  /// Returns nullptr once the transaction's memory has another use.
  Txn* txn() const noexcept { return txn_->stamp().use() == stamp_.use() ? txn_ : nullptr; }
  MDB_dbi dbi() const noexcept { return dbi_; }
  bool has_dups() const noexcept { return main_.has_dups(); }
  /// Implements mdb_cursor_is_db of LMDB 1.0.  False once the transaction has ended.
  bool at_named_database() noexcept {
    return (txn_->stamp().bits == stamp_.bits || still_attached()) && main_.at_named_database();
  }

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
  std::unique_ptr<ahead::Readahead> readahead_;
};

}  // namespace lmdbio::tree
