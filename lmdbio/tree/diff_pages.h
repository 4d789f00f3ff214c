// The pages of one snapshot during a comparison, and the records in them.  Internal to tree/diff.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lmdbio/format/compare.h"
#include "lmdbio/format/page_view.h"
#include "lmdbio/gather/page_batch.h"
#include "lmdbio/tree/diff.h"

namespace lmdbio::tree {

/// Opens the pages of one snapshot.
class DiffPages {
 public:
  /// All arguments must outlive this object.
  DiffPages(const DiffSide& side, bool newer, const std::atomic<bool>* cancelled, DiffCounters& counters,
            DiffProblem& problem) noexcept
      : view_(side.view),
        pages_(side.snapshot.last_pg < view_.pages() ? side.snapshot.last_pg + 1 : view_.pages()),
        txnid_(side.snapshot.txnid),
        newer_(newer),
        cancelled_(cancelled),
        counters_(counters),
        problem_(problem),
        batches_(side.file, view_.base(), view_.pages(), view_.page_size(), cancelled, side.programs_fd) {}

  /// Opens and counts a page of a tree.  Returns MDB_CORRUPTED if it is not a branch page or a leaf page, as
  /// wanted, or if more pages were opened than the snapshot has.  Returns ECANCELED if the comparison was
  /// cancelled.
  Status open(std::uint64_t page, bool branch, format::PageView& out) noexcept;
  /// Appends the pages below a branch page to `out`, from entry `from` on.
  Status children(std::uint64_t page, const format::PageView& branch, unsigned from,
                  std::vector<std::uint64_t>& out);
  /// Returns an error for page `page`; `format` and the rest are arguments of printf.
  [[gnu::format(printf, 3, 4)]] Status corrupted(std::uint64_t page, const char* format, ...) noexcept;
  Status wrong_order(std::uint64_t page, const char* what) noexcept;
  /// Returns MDB_INCOMPATIBLE if the keys of a branch page are not in this order.
  Status check_order(std::uint64_t page, const format::PageView& branch,
                     const format::Comparator& order) noexcept;

  /// Returns the transaction that has written a page, or 0 if it is not in the snapshot.  In files of LMDB
  /// 1.0 only.
  std::uint64_t writer_of(std::uint64_t page) const noexcept;

  const window::WindowView& view() const noexcept { return view_; }
  /// Returns the number of pages of the snapshot that the view has.
  std::uint64_t pages() const noexcept { return pages_; }
  gather::PageBatches& batches() noexcept { return batches_; }
  DiffCounters& counters() noexcept { return counters_; }

 private:
  const window::WindowView view_;
  const std::uint64_t pages_, txnid_;
  std::uint64_t opened_ = 0;
  const bool newer_;
  const std::atomic<bool>* const cancelled_;
  DiffCounters& counters_;
  DiffProblem& problem_;
  gather::PageBatches batches_;
};

/// A tree of one snapshot: a database's own, or the duplicates of one key.
struct DiffTree {
  DiffPages* side;
  format::DbRecord record;
};

/// Returns the record of an empty tree.
format::DbRecord empty_tree(const format::DbRecord& like) noexcept;

/// What shows that two trees have a page in common.
enum class Shared : unsigned char {
  nothing,
  number,       ///< both snapshots are of the same file, and the older one is held
  transaction,  ///< its number and its transaction: see DiffOptions::older_is_copy
};

/// Returns whether a page that both trees have under this number is the same page.
bool is_shared(Shared shared, const DiffPages& older, const DiffPages& newer, std::uint64_t page) noexcept;

/// Finds the leaf pages of both trees, in key order, without those that both trees have.
Status find_leaves(const DiffTree& older, const DiffTree& newer, Shared shared,
                   std::vector<std::uint64_t>& older_leaves, std::vector<std::uint64_t>& newer_leaves);

/// Finds the leaf pages of a tree that may have keys from `key` on, in key order.  If `only_one`, only the
/// first.  Returns MDB_INCOMPATIBLE if the keys of a branch page on the path to `key` are not in this order.
Status leaves_behind(DiffPages& side, const format::DbRecord& record, const format::Comparator& order,
                     Bytes key, std::vector<std::uint64_t>& leaves, bool only_one = false);

/// A record of a leaf page, or a value of a database with duplicates.  For values, the key is the value.
/// Header fields were loaded once, since a writer may change the page.
struct DiffItem {
  const std::byte* key = nullptr;
  std::size_t key_bytes = 0;
  unsigned flags = 0;
  const std::byte* data = nullptr;
  std::size_t data_bytes = 0;  ///< of the value; the page has a page number in its place if it is BIGDATA
  std::uint64_t page = 0;
  unsigned index = 0;  ///< of the entry in the page

  Bytes key_span() const noexcept { return {key, key_bytes}; }
};

/// Returns true if the item is the record of a tree of duplicates.
inline bool is_dup_tree(const DiffItem& i) noexcept {
  return (i.flags & (format::kSubData | format::kDupData)) == (format::kSubData | format::kDupData) &&
         i.data_bytes == sizeof(format::DbRecord);
}
/// Returns true if the item, of the main database, is the record of a named database.
inline bool is_database(const DiffItem& i) noexcept {
  return (i.flags & (format::kSubData | format::kDupData | format::kBigData)) == format::kSubData &&
         i.data_bytes == sizeof(format::DbRecord);
}

/// Returns true if the nodes of one key show that its values are the same.
bool same_node(Shared shared, const DiffPages& older_pages, const DiffPages& newer_pages,
               const DiffItem& older, const DiffItem& newer) noexcept;

/// Compares two keys, or two values of a database with duplicates, as stock LMDB does.  Integers of different
/// sizes, which lmdb.h does not allow in one database, are ordered by size.
int compare_keys(const format::Comparator& order, Bytes a, Bytes b) noexcept;

/// The records of some leaf pages of one tree, in key order.  Reads the pages ahead.
class DiffItems {
 public:
  /// No records.  `ordered`: next() checks the order.
  DiffItems(DiffPages& side, const format::Comparator& order, bool ordered = true) noexcept
      : side_(side), order_(order), ordered_(ordered) {}
  DiffItems(const DiffItems&) = delete;
  DiffItems& operator=(const DiffItems&) = delete;
  ~DiffItems();

  /// Makes the records those of leaf pages.  `item_bytes`: size of the items of pages with kLeaf2.
  void take_leaves(std::vector<std::uint64_t> leaves, std::size_t item_bytes);
  /// Makes the records those of a sub-page, which lies in page `page`.
  Status take_sub_page(const DiffItem& node);
  /// Makes `value` the only record.
  void take_value(const DiffItem& value) noexcept;

  /// Sets `out` to the next record.  Sets `ended` at the end.  Returns MDB_INCOMPATIBLE if the record is not
  /// behind the previous one.
  Status next(DiffItem& out, bool& ended);
  DiffPages& side() noexcept { return side_; }
  std::uint64_t leaves() const noexcept { return leaves_.size(); }
  std::uint64_t leaves_read() const noexcept { return next_leaf_; }

 private:
  void reach(std::size_t leaf);
  void ask(std::size_t wave);
  Status give(DiffItem& out);

  DiffPages& side_;
  const format::Comparator& order_;
  const bool ordered_;
  std::vector<std::uint64_t> leaves_;
  std::size_t next_leaf_ = 0;
  ReadGroup groups_[2];  ///< the wave that is read now, and the next one
  format::PageView page_ = format::PageView::none();
  std::uint64_t page_number_ = 0;
  unsigned index_ = 0;
  std::size_t item_bytes_ = 0;
  DiffItem single_, last_;
  bool has_single_ = false, has_last_ = false;
};

/// Walks two sequences of records together.  Calls found(older, newer) -> Status for each key, with nullptr
/// for a record that one side does not have.  Keys are the same if their bytes are.
template <class Found>
Status merge(DiffItems& older, DiffItems& newer, const format::Comparator& order, Found&& found) {
  DiffItem a, b;
  bool a_ended = false, b_ended = false;
  if (const Status st = older.next(a, a_ended); !st.ok()) return st;
  if (const Status st = newer.next(b, b_ended); !st.ok()) return st;
  while (!a_ended || !b_ended) {
    int which = a_ended ? 1 : -1;
    if (!a_ended && !b_ended) which = compare_keys(order, a.key_span(), b.key_span());
    const bool same = which == 0 && a.key_bytes == b.key_bytes && std::memcmp(a.key, b.key, a.key_bytes) == 0;
    Status st;
    if (same) {
      st = found(&a, &b);
    } else {
      if (which <= 0) st = found(&a, nullptr);
      if (st.ok() && which >= 0) st = found(nullptr, &b);
    }
    if (st.ok() && which <= 0) st = older.next(a, a_ended);
    if (st.ok() && which >= 0) st = newer.next(b, b_ended);
    if (!st.ok()) return st;
  }
  return {};
}

}  // namespace lmdbio::tree
