#include "lmdbio/tree/cursor.h"

#include <new>

#include "lmdbio/base/fork_safe_mutex.h"

namespace lmdbio::tree {

namespace {

Status invalid() noexcept { return Status::from_errno(EINVAL); }

}  // namespace

Cursor::Cursor(Txn& txn, MDB_dbi dbi) : dbi_(dbi) {
  (void)txn.record(dbi_);  // as mdb_cursor_init: the first use of the cursor returns the error
  if (wants_dups(txn, dbi)) dups_ = std::make_unique<Walker>();
  attach(txn);
}

Cursor::Cursor(Txn& txn, MDB_dbi dbi, std::unique_ptr<Walker> dups) noexcept
    : dbi_(dbi), dups_(std::move(dups)) {
  attach(txn);
}

void Cursor::attach(Txn& txn) noexcept {
  // A renewed cursor keeps its last duplicates, as in stock, and moves before the next lookup return them.
  // After a change of the window the duplicates are forgotten, because the old window may be unmapped.
  if (dups_ != nullptr && dups_window_ != txn.stamp().window()) dups_->forget_tree();
  if (dups_window_ != txn.stamp().window()) readahead_.reset();  // it may belong to another environment
  dups_window_ = txn.stamp().window();
  main_.attach(txn, dbi_, wants_dups(txn, dbi_) ? dups_.get() : nullptr);
  main_.read_ahead_by(txn.env().file().reads_ahead() ? &readahead_ : nullptr);
  txn_ = &txn;
  stamp_ = txn.stamp();
  stamp_.bits &= ~Txn::Stamp::kBlocked;
}

bool Cursor::renew(Txn& txn) {
  (void)txn.record(dbi_);
  if (dups_ == nullptr && wants_dups(txn, dbi_)) {
    const AsyncSignalsBlocked fork_safe(has_own_threads());
    dups_.reset(new (std::nothrow) Walker);
    if (dups_ == nullptr) return false;
  }
  attach(txn);
  return true;
}

// Returns false if the transaction is blocked or its memory has another use.  If the transaction was renewed
// and its window has changed, forgets the position, which pointed into the old window.
bool Cursor::still_attached() noexcept {
  if (txn_->stamp().use() != stamp_.use() || txn_->blocked()) return false;
  if (stamp_.window() != txn_->stamp().window()) {
    stamp_ = txn_->stamp();
    dups_window_ = stamp_.window();
    main_.unset();
    if (readahead_ != nullptr) readahead_->forget();
    main_.read_ahead_by(txn_->env().file().reads_ahead() ? &readahead_ : nullptr);
    if (dups_ != nullptr) {
      dups_->unset();
      dups_->forget_tree();
    }
  }
  return true;
}

Status Cursor::get_slow(MDB_val* key, MDB_val* data, MDB_cursor_op op) {
  Counters& n = txn_->counters();
  const auto kind = static_cast<unsigned>(op);
  ++n.cursor_op[kind < Counters::kCursorOps ? kind : Counters::kCursorOps];
  const Status st = dispatch(key, data, op);
  if (!st.ok())
    ++n.cursor_failed;
  else if (data != nullptr && op != MDB_GET_MULTIPLE && op != MDB_NEXT_MULTIPLE && op != MDB_PREV_MULTIPLE)
    n.bytes += data->mv_size;  // except for whole pages, whose bytes give_page counts
  return st;
}

// Checks arguments in stock's order.
Status Cursor::dispatch(MDB_val* key, MDB_val* data, MDB_cursor_op op) {
  switch (op) {
    case MDB_FIRST:
      return main_.first(key, data);
    case MDB_LAST:
      return main_.last(key, data);
    case MDB_NEXT:
    case MDB_NEXT_DUP:
    case MDB_NEXT_NODUP:
      return main_.next(key, data, op);
    case MDB_PREV:
    case MDB_PREV_DUP:
    case MDB_PREV_NODUP:
      return main_.prev(key, data, op);
    case MDB_GET_CURRENT:
      return main_.current(key, data);
    case MDB_GET_BOTH:
    case MDB_GET_BOTH_RANGE:
      if (data == nullptr) return invalid();
      if (!has_dups()) return Status::from_mdb(MDB_INCOMPATIBLE);
      [[fallthrough]];
    case MDB_SET:
    case MDB_SET_KEY:
    case MDB_SET_RANGE:
      if (key == nullptr) return invalid();
      return main_.set(key, data, op, op != MDB_SET_RANGE);
    case MDB_FIRST_DUP:
      return main_.edge_dup(false, key, data);
    case MDB_LAST_DUP:
      return main_.edge_dup(true, key, data);
    case MDB_GET_MULTIPLE:
      return main_.get_multiple(data);
    case MDB_NEXT_MULTIPLE:
      return main_.next_multiple(key, data);
    case MDB_PREV_MULTIPLE:
      return main_.prev_multiple(key, data);
  }
  return invalid();
}

Status Cursor::count(std::size_t& n) {
  if (!has_dups()) return Status::from_mdb(MDB_INCOMPATIBLE);
  if (!still_attached()) return Status::from_mdb(MDB_BAD_TXN);
  return main_.count(n);
}

}  // namespace lmdbio::tree
