// A position in one tree, and LMDB's cursor moves.
#pragma once

#include <lmdb.h>

#include <cstdint>
#include <memory>

#include "lmdbio/ahead/leaf_ahead.h"
#include "lmdbio/ahead/readahead.h"
#include "lmdbio/tree/descend.h"
#include "lmdbio/tree/txn.h"

namespace lmdbio::tree {

/// A position in one tree (walker.cc) and the moves of LMDB (walker_moves.cc, walker_dups.cc).  Each move
/// changes the position exactly as stock changes its cursor.  This includes failed moves, because later calls
/// depend on the position.
///
/// A main walker has a `dups` walker for databases with MDB_DUPSORT. A dups walker walks the duplicates of
/// the main walker's entry as the keys of a separate tree, which is a sub-page or a sub-database.  Key and
/// data may be null where lmdb.h allows it.  The key of a dups walker is the main walker's data.
class Walker {
 public:
  Walker() noexcept {}  // NOLINT: attach() sets what is not set here
  /// These functions attach the walker without a position, as mdb_cursor_init does: to a database, or to the
  /// duplicates of one.
  void attach(Txn& txn, MDB_dbi dbi, Walker* dups);
  void attach_dups(Txn& txn, const format::Comparator& order) noexcept;
  /// Makes the walker call a read-ahead before it enters pages outside the run granted last.  The walker
  /// creates the read-ahead in `slot` at first need.  `slot` belongs to the cursor; null: no read-ahead, only
  /// the mapping.
  void read_ahead_by(std::unique_ptr<ahead::Readahead>* slot) noexcept {
    readahead_ = slot;
    run_ = slot != nullptr ? ahead::FreeRun() : ahead::FreeRun::everything();
    each_leaf_ = false;
  }
  /// Forgets the duplicates walked last, so that they are not returned again.  A new dups walker requires
  /// this call before its first use.
  void forget_tree() noexcept;

  Status first(MDB_val* key, MDB_val* data) { return edge(false, key, data); }
  Status last(MDB_val* key, MDB_val* data) { return edge(true, key, data); }
  Status next(MDB_val* key, MDB_val* data, MDB_cursor_op op);
  Status prev(MDB_val* key, MDB_val* data, MDB_cursor_op op);
  /// Implements MDB_SET, SET_KEY, SET_RANGE, GET_BOTH and GET_BOTH_RANGE. If `want_exact`, returns
  /// MDB_NOTFOUND unless the key itself is found.
  Status set(MDB_val* key, MDB_val* data, MDB_cursor_op op, bool want_exact);
  Status current(MDB_val* key, MDB_val* data);
  Status edge_dup(bool last, MDB_val* key, MDB_val* data);
  Status get_multiple(MDB_val* data);
  Status next_multiple(MDB_val* key, MDB_val* data);
  Status prev_multiple(MDB_val* key, MDB_val* data);
  Status count(std::size_t& n);
  /// Finds the entry of exactly `key`.  Returns MDB_NOTFOUND if there is none.  For database names.
  Status find_node(const MDB_val& key, format::Node& out);
  /// Forgets the position.
  void unset() noexcept { clear(kPositioned | kEof | kOwed); }
  bool has_dups() const noexcept { return dups_ != nullptr; }
  /// Returns whether the position is at the record of a named database.
  bool at_named_database() const noexcept {
    format::Node n;
    return positioned() && node(leaf_.index, n) &&
           (n.flags() & (format::kDupData | format::kSubData)) == format::kSubData;
  }

  /// Does MDB_NEXT (kStep 1), PREV (-1) or GET_CURRENT (0) inside a leaf of a database without duplicates:
  /// the hot path.  Sets `data_bytes` to the size of the value.  Returns false if nothing was done.  The
  /// caller then makes the general move, which also reports damaged entries.
  template <int kStep, format::Version kVersion>
  bool step_in_leaf(MDB_val* key, MDB_val* data, std::size_t& data_bytes) noexcept;

  /// Records a branch page on the path, for descend_memn.  Returns false if the tree is too deep.
  bool push(const format::PageView& page, unsigned index) noexcept {
    if (above_ >= format::kMaxDepth - 1) return false;
    index_[above_] = static_cast<std::uint16_t>(index);
    branch_[above_++] = page;
    return true;
  }

 private:
  enum : unsigned {
    kPositioned = 1,  ///< C_INITIALIZED
    kEof = 2,         ///< C_EOF
    kPlain = 4,       ///< no duplicates, and not a dups walker
    kOwedNext = 8,    ///< the entry at the position could not be read; the next MDB_NEXT returns it
    kOwedPrev = 16,   ///< the same for MDB_PREV
    kOwed = kOwedNext | kOwedPrev,
    kVersion10 = 32,  ///< the file has the format of LMDB 1.0
    kPositionedPlain = kPositioned | kPlain,
  };

  bool positioned() const noexcept { return (flags_ & kPositioned) != 0; }
  bool at_eof() const noexcept { return (flags_ & kEof) != 0; }
  void clear(unsigned f) noexcept { flags_ &= ~f; }
  void forget_dups() noexcept {
    if (dups_ != nullptr) dups_->clear(kPositioned | kEof);
  }

  Status edge(bool last, MDB_val* key, MDB_val* data);
  Status load_page(format::Pgno p, format::PageView& page);
  Status lost(Status st) noexcept;
  Status root(format::PageView& page);
  Status to_edge(format::PageView page, bool last);
  Status to_key(const MDB_val& key);
  Status sibling(bool right);
  bool step_dup(int step, MDB_val* data) noexcept;
  Status search_leaf(const MDB_val& key, format::Place& place, std::size_t common = 0);
  Status entry_key(unsigned i, MDB_val& key);
  template <format::Version kVersion>
  Status key_at(unsigned i, MDB_val& key);
  Status key_of_10(unsigned i, MDB_val& key);
  int compare_entry(const MDB_val& key, const MDB_val& entry);
  bool node(unsigned i, format::Node& out) const noexcept {
    return i < leaf_.page.count() && leaf_.page.node(i, out);
  }
  Status give_item(unsigned i, MDB_val* key) noexcept;
  Status give_page(MDB_val* data) noexcept;
  bool last_leaf() const noexcept;
  Status to_place(const MDB_val& key, format::Place& place);
  Status enter_dups(const format::Node& node);
  Status give_entry(bool last_dup, MDB_val* key, MDB_val* data, bool jumped = false);
  void jumped_to_leaf() noexcept;
  bool walk_on(bool right) noexcept;
  bool asks_for_leaf(format::Pgno p) const noexcept {
    return readahead_ != nullptr && (each_leaf_ || !run_.covers(format::raw(p), 0));
  }
  [[gnu::noinline]] Status pace(ahead::Readahead::Step kind, bool forward, const ahead::PageRun& need,
                                const format::PageView& leaf) noexcept;
  Status give_value(const format::Node& n, bool forward, MDB_val* data) noexcept;
  void jumped_to_value() noexcept;
  template <format::Version kVersion>
  void jumped_to_value_in() noexcept;
  void jumped_to_value_10() noexcept;
  bool next_is_free(const format::PageView& parent, unsigned taken) const noexcept;
  Status owe(unsigned which, Status st) noexcept;
  void walk_anew() noexcept;
  [[gnu::cold]] Status bad_leaf() noexcept;
  [[gnu::cold]] Status bad_branch(const format::PageView& page) noexcept;

  Txn* txn_ = nullptr;
  unsigned flags_ = 0;
  unsigned above_ = 0;  ///< branch pages above the leaf
  Level leaf_;          ///< not initialized until positioned
  ahead::FreeRun run_ =
      ahead::FreeRun::everything();  ///< pages that may be entered without a call of the read-ahead
  bool each_leaf_ = false;           ///< the read-ahead requires a call at each leaf
  std::unique_ptr<ahead::Readahead>* readahead_ = nullptr;
  ahead::LeafAhead ahead_;
  std::int64_t leaves_walked_ = 0;  ///< in one direction since the last lookup; negative: backwards

  Walker* dups_ = nullptr;
  MDB_dbi dbi_ = 0;
  bool is_dups_ = false;
  const format::Comparator* order_ = nullptr;      ///< the database's, shared; for duplicates: &own_order_
  const format::Comparator* dup_order_ = nullptr;  ///< the database's
  format::Comparator own_order_;
  format::DbRecord own_db_{
      0, 0, 0, 0, 0, 0, 0, format::kNoPage};  ///< for duplicates: the tree under the main walker's entry
  format::PageView inline_root_ =
      format::PageView::none();  ///< for duplicates: their sub-page, if they have one
  const format::DbRecord* db_ = nullptr;
  // The branch pages above the leaf, and the entries taken in them.  Not initialized.
  std::uint16_t index_[format::kMaxDepth - 1];
  format::PageView branch_[format::kMaxDepth - 1];
};

template <int kStep, format::Version kVersion>
[[gnu::always_inline]] inline bool Walker::step_in_leaf(MDB_val* key, MDB_val* data,
                                                        std::size_t& data_bytes) noexcept {
  const unsigned i = leaf_.index + static_cast<unsigned>(kStep);  // before the first: above any count
  constexpr unsigned kReady =
      kPositionedPlain | (kVersion == format::Version::v09 ? 0u : unsigned{kVersion10});
  if (flags_ != kReady || i >= leaf_.page.count()) [[unlikely]]
    return false;
  if (kStep > 0) ahead_.step(i);
  format::Node node;
  unsigned flags;
  std::size_t key_bytes;
  if (!leaf_.page.leaf_node<kVersion>(i, node, flags, key_bytes, data_bytes)) [[unlikely]]
    return false;
  const std::byte* value = node.key() + format::data_after_key(kVersion, key_bytes);
  if ((flags & format::kBigData) != 0) {
    const format::Pgno p = load<format::Pgno>(value);
    if (!txn_->view().find<kVersion>(p, data_bytes, value)) [[unlikely]]
      return false;
    if (!run_.covers(format::raw(p),
                     (format::page_header(kVersion) - 1 + data_bytes) >> txn_->view().shift()) &&
        data != nullptr) [[unlikely]]
      return false;
  }
  leaf_.index = static_cast<std::uint16_t>(i);
  if (data != nullptr) [[likely]]
    *data = {data_bytes, const_cast<std::byte*>(value)};
  if (key != nullptr) [[likely]]
    *key = {key_bytes, const_cast<std::byte*>(node.key())};
  return true;
}

}  // namespace lmdbio::tree
