#include "lmdbio/tree/diff.h"

#include <lmdb.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/tree/diff_pages.h"
#include "lmdbio/tree/env.h"

namespace lmdbio::tree {

using format::Comparator;
using format::DbRecord;
using format::kBigData;
using format::kDupData;
using format::kSubData;
using format::PageView;
using format::Pgno;

namespace {

/// Number of records whose values and trees of duplicates are read together.
constexpr std::size_t kTogether = 256;
/// Values up to this size are read together with others; page faults read larger ones.
constexpr std::size_t kMostReadTogether = std::size_t{16} << 20;

Shared shared_by(const DiffOptions& options) noexcept {
  return options.older_is_copy   ? Shared::transaction
         : options.older_is_held ? Shared::number
                                 : Shared::nothing;
}

class Diff {
 public:
  Diff(const DiffSide& older, const DiffSide& newer, const DiffOptions& options, DiffVisitor& visitor,
       DiffCounters& counters, DiffProblem& problem) noexcept
      : shared_(shared_by(options)),
        visitor_(visitor),
        older_(older, false, options.cancelled, counters, problem),
        newer_(newer, true, options.cancelled, counters, problem) {}

  /// Compares a database: its records, or all its records if its flags differ.
  Status database(std::string_view name, const DbRecord& older, const DbRecord& newer);
  /// Compares the main database.
  Status main_database(const DbRecord& older, const DbRecord& newer);
  /// Compares the named databases that differ in the main database.
  Status named_databases();
  /// Emits the records behind `last`.
  Status appended(std::string_view name, const DbRecord& record, Bytes key, Bytes value);

 private:
  /// A record, or what the two snapshots have of one key.
  struct Pair {
    bool has_older, has_newer;
    DiffItem older, newer;
  };
  struct Named {
    std::string name;
    bool has_older, has_newer;
    DbRecord older{}, newer{};
  };

  DiffPages& side(bool newer) noexcept { return newer ? newer_ : older_; }
  void start(std::string_view name, unsigned flags) noexcept;
  Status trees(const DbRecord& older, const DbRecord& newer);
  Status found(const DiffItem* older, const DiffItem* newer);
  void take_named(const Pair& pair);
  Status flush();
  void read_ahead(bool newer, ReadGroup& group);
  Status emit(const Pair& pair);
  Status emit_dups(const Pair& pair);
  Status dups_of(const DiffItem& node, DiffItems& items);
  Status value(bool newer, const DiffItem& item, Bytes& out);
  Status give(const ChangedRecord& record);

  const Shared shared_;
  DiffVisitor& visitor_;
  DiffPages older_, newer_;
  std::vector<Named> named_;
  std::uint64_t compared_bytes_ = 0;  ///< of values, of one side

  std::string_view name_;  ///< of the database that is compared
  unsigned flags_ = 0;
  Comparator key_order_, dup_order_;
  std::vector<Pair> pairs_;
};

void Diff::start(std::string_view name, unsigned flags) noexcept {
  name_ = name;
  flags_ = flags;
  key_order_ = format::default_key_order(flags);
  dup_order_ = format::default_dup_order(flags);
}

Status Diff::database(std::string_view name, const DbRecord& older, const DbRecord& newer) {
  const bool fixed = (newer.flags & MDB_DUPFIXED) != 0;
  const bool same_kind = older.root == format::kNoPage || newer.root == format::kNoPage ||
                         (older.flags == newer.flags && (!fixed || older.pad == newer.pad));
  if (same_kind) {
    start(name, older.root == format::kNoPage ? newer.flags : older.flags);
    return trees(older, newer);
  }
  start(name, older.flags);
  if (const Status st = trees(older, empty_tree(older)); !st.ok()) return st;
  start(name, newer.flags);
  return trees(empty_tree(newer), newer);
}

Status Diff::main_database(const DbRecord& older, const DbRecord& newer) {
  DbRecord now = newer;
  // Stock LMDB adds the flags of mdb_dbi_open() to those of the main database, without moving its records.
  if (older.root != format::kNoPage && newer.root != format::kNoPage) {
    if (((older.flags ^ newer.flags) & ~(MDB_REVERSEKEY | MDB_INTEGERKEY)) != 0) {
      (void)newer_.corrupted(format::raw(newer.root), "the main database has flags 0x%x, and 0x%x before",
                             unsigned{newer.flags}, unsigned{older.flags});
      return Status::from_mdb(MDB_INCOMPATIBLE);
    }
    now.flags = older.flags;
  }
  return database({}, older, now);
}

Status Diff::trees(const DbRecord& older, const DbRecord& newer) {
  std::vector<std::uint64_t> leaves[2];
  if (const Status st = find_leaves({&older_, older}, {&newer_, newer}, shared_, leaves[0], leaves[1]);
      !st.ok())
    return st;
  if (shared_ != Shared::nothing)
    for (const std::uint64_t page : leaves[0]) visitor_.dropped_leaf(page);
  DiffItems a(older_, key_order_), b(newer_, key_order_);
  a.take_leaves(std::move(leaves[0]), older.pad);
  b.take_leaves(std::move(leaves[1]), newer.pad);
  const std::uint64_t total = a.leaves() + b.leaves();
  std::uint64_t told = 0;
  pairs_.clear();
  const Status st = merge(a, b, key_order_, [&](const DiffItem* x, const DiffItem* y) {
    if (const std::uint64_t done = a.leaves_read() + b.leaves_read(); done - told >= kTogether) {
      told = done;
      visitor_.progress(done, total);
    }
    return found(x, y);
  });
  return st.ok() ? flush() : st;
}

// Keeps a key whose records may differ.
Status Diff::found(const DiffItem* older, const DiffItem* newer) {
  if (older != nullptr && newer != nullptr && same_node(shared_, older_, newer_, *older, *newer)) return {};
  const bool alone = older == nullptr && (flags_ & MDB_DUPSORT) == 0;  // emit() needs no other pages
  if (alone && pairs_.empty() && (newer->flags & ~kBigData) == 0) {
    Bytes bytes;
    if (const Status st = value(true, *newer, bytes); !st.ok()) return st;
    return give({Change::inserted, name_, newer->key_span(), {}, bytes, newer->page, newer->index});
  }
  if (alone && pairs_.empty()) return emit({false, true, {}, *newer});
  pairs_.push_back({older != nullptr, newer != nullptr, older != nullptr ? *older : DiffItem{},
                    newer != nullptr ? *newer : DiffItem{}});
  return pairs_.size() < kTogether ? Status() : flush();
}

Status Diff::flush() {
  ReadGroup groups[2];
  struct Dropper {
    Diff& diff;
    ReadGroup (&groups)[2];
    ~Dropper() {
      for (int i = 0; i < 2; ++i) diff.side(i != 0).batches().drop(groups[i]);
      diff.pairs_.clear();
    }
  } const dropper{*this, groups};
  for (int i = 0; i < 2; ++i) read_ahead(i != 0, groups[i]);
  for (int i = 0; i < 2; ++i) (void)side(i != 0).batches().wait(groups[i]);
  for (const Pair& p : pairs_)
    if (const Status st = emit(p); !st.ok()) return st;
  return {};
}

// Requests the pages that emit() will read: values to compare, and roots of trees of duplicates.
void Diff::read_ahead(bool newer, ReadGroup& group) {
  if (!side(newer).batches().on()) return;
  std::vector<gather::PageRun> runs;
  for (const Pair& p : pairs_) {
    if (!(newer ? p.has_newer : p.has_older)) continue;
    const DiffItem& item = newer ? p.newer : p.older;
    if (is_dup_tree(item))
      runs.push_back({format::raw(load<DbRecord>(item.data).root), 1});
    else if ((item.flags & kBigData) != 0 && p.has_older && p.has_newer &&
             p.older.data_bytes == p.newer.data_bytes && item.data_bytes <= kMostReadTogether)
      runs.push_back({load<std::uint64_t>(item.data), side(newer).view().overflow_pages(item.data_bytes)});
  }
  side(newer).batches().ask(group, runs);
}

Status Diff::emit(const Pair& p) {
  const DiffItem& one = p.has_newer ? p.newer : p.older;
  if ((flags_ & MDB_DUPSORT) != 0) return emit_dups(p);
  const bool was_database = p.has_older && is_database(p.older);
  const bool is_database_now = p.has_newer && is_database(p.newer);
  if (name_.empty() && (was_database || is_database_now)) {
    take_named(p);
    if ((was_database || !p.has_older) && (is_database_now || !p.has_newer)) return {};
  }
  Bytes values[2];
  const bool plain[2] = {p.has_older && !(name_.empty() && was_database),
                         p.has_newer && !(name_.empty() && is_database_now)};
  for (const bool newer : {false, true})
    if (plain[newer])
      if (const Status st = value(newer, newer ? p.newer : p.older, values[newer]); !st.ok()) return st;
  if (plain[0] && plain[1]) {
    if (values[0].size() == values[1].size()) {
      // No value has bytes of another one.
      compared_bytes_ += values[0].size();
      if (compared_bytes_ > newer_.pages() * newer_.view().page_size())
        return newer_.corrupted(p.newer.page, "the values have more bytes than the snapshot");
      newer_.counters().compared_bytes += 2 * values[0].size();
      if (values[0].empty() || std::memcmp(values[0].data(), values[1].data(), values[0].size()) == 0)
        return {};
    }
    return give({Change::replaced, name_, one.key_span(), values[0], values[1], one.page, one.index});
  }
  if (plain[0]) return give({Change::deleted, name_, one.key_span(), values[0], {}});
  return give({Change::inserted, name_, one.key_span(), {}, values[1], one.page, one.index});
}

void Diff::take_named(const Pair& p) {
  const DiffItem& one = p.has_newer ? p.newer : p.older;
  const format::Version version = side(p.has_newer).view().version();
  Named n{std::string(reinterpret_cast<const char*>(one.key), format::name_bytes(version, one.key_bytes)),
          p.has_older && is_database(p.older), p.has_newer && is_database(p.newer)};
  if (n.has_older) n.older = load<DbRecord>(p.older.data);
  if (n.has_newer) n.newer = load<DbRecord>(p.newer.data);
  if (!n.has_older) n.older = empty_tree(n.newer);
  if (!n.has_newer) n.newer = empty_tree(n.older);
  named_.push_back(std::move(n));
}

Status Diff::named_databases() {
  for (const Named& n : named_) {
    if (!n.has_older)
      visitor_.database(n.name, Change::inserted);
    else if (!n.has_newer)
      visitor_.database(n.name, Change::deleted);
    else if (n.older.flags != n.newer.flags)
      visitor_.database(n.name, Change::replaced);
    if (const Status st = database(n.name, n.older, n.newer); !st.ok()) return st;
  }
  return {};
}

// --- duplicates ---

Status Diff::emit_dups(const Pair& p) {
  const DiffItem& one = p.has_newer ? p.newer : p.older;
  DiffItems a(older_, dup_order_), b(newer_, dup_order_);
  if (p.has_older && p.has_newer && is_dup_tree(p.older) && is_dup_tree(p.newer)) {
    const auto older = load<DbRecord>(p.older.data), newer = load<DbRecord>(p.newer.data);
    std::vector<std::uint64_t> leaves[2];
    if (const Status st = find_leaves({&older_, older}, {&newer_, newer}, shared_, leaves[0], leaves[1]);
        !st.ok())
      return st;
    a.take_leaves(std::move(leaves[0]), older.pad);
    b.take_leaves(std::move(leaves[1]), newer.pad);
  } else {
    if (p.has_older)
      if (const Status st = dups_of(p.older, a); !st.ok()) return st;
    if (p.has_newer)
      if (const Status st = dups_of(p.newer, b); !st.ok()) return st;
  }
  return merge(a, b, dup_order_, [&](const DiffItem* x, const DiffItem* y) {
    if (x != nullptr && y != nullptr) return Status();
    if (x != nullptr) return give({Change::deleted, name_, one.key_span(), x->key_span(), {}});
    return give({Change::inserted, name_, one.key_span(), {}, y->key_span()});
  });
}

// Sets `items` to all values of one key.
Status Diff::dups_of(const DiffItem& node, DiffItems& items) {
  DiffPages& of = items.side();
  if (is_dup_tree(node)) {
    const auto record = load<DbRecord>(node.data);
    std::vector<std::uint64_t> leaves, none;
    if (const Status st =
            find_leaves({&of, record}, {&of, empty_tree(record)}, Shared::nothing, leaves, none);
        !st.ok())
      return st;
    items.take_leaves(std::move(leaves), record.pad);
    return {};
  }
  if (node.flags == kDupData) return items.take_sub_page(node);
  if (node.flags != 0) return of.corrupted(node.page, "a key with invalid duplicates");
  DiffItem value = node;
  value.key = node.data;
  value.key_bytes = node.data_bytes;
  value.data_bytes = 0;
  items.take_value(value);
  return {};
}

// --- values ---

Status Diff::value(bool newer, const DiffItem& item, Bytes& out) {
  if ((item.flags & ~(kBigData | kSubData)) != 0)
    return side(newer).corrupted(item.page, "a node with flags 0x%x", item.flags);
  if ((item.flags & kBigData) == 0) {
    out = {item.data, item.data_bytes};
    return {};
  }
  const auto run = load<std::uint64_t>(item.data);
  const std::byte* at = nullptr;
  if (run >= side(newer).pages() || !side(newer).view().find(Pgno{run}, item.data_bytes, at))
    return side(newer).corrupted(item.page, "a value of %zu bytes at page %llu, outside the snapshot",
                                 item.data_bytes, 0ULL + run);
  out = {at, item.data_bytes};
  return {};
}

Status Diff::give(const ChangedRecord& record) {
  return visitor_.record(record) ? Status() : Status::from_errno(ECANCELED);
}

// --- records behind a key ---

Status Diff::appended(std::string_view name, const DbRecord& record, Bytes key, Bytes value) {
  start(name, record.flags);
  std::vector<std::uint64_t> level;
  if (const Status st = leaves_behind(newer_, record, key_order_, key, level); !st.ok()) return st;
  DiffItems items(newer_, key_order_);
  items.take_leaves(std::move(level), record.pad);
  pairs_.clear();
  for (;;) {
    DiffItem item;
    bool ended = false;
    if (const Status st = items.next(item, ended); !st.ok()) return st;
    if (ended) return flush();
    const int behind = compare_keys(key_order_, item.key_span(), key);
    Status st;
    if (behind > 0) st = found(nullptr, &item);
    if (behind == 0 && (record.flags & MDB_DUPSORT) != 0) {
      DiffItems none(newer_, dup_order_), dups(newer_, dup_order_);
      if (st = dups_of(item, dups); !st.ok()) return st;
      st = merge(none, dups, dup_order_, [&](const DiffItem*, const DiffItem* one) {
        if (compare_keys(dup_order_, one->key_span(), value) <= 0) return Status();
        return give({Change::inserted, name_, item.key_span(), {}, one->key_span()});
      });
    }
    if (!st.ok()) return st;
  }
}

}  // namespace

Status diff_snapshots(const DiffSide& older, const DiffSide& newer, const DiffOptions& options,
                      DiffVisitor& visitor, DiffCounters& counters, DiffProblem& problem) {
  const bool alike =
      older.view.page_size() == newer.view.page_size() && older.view.version() == newer.view.version();
  if (shared_by(options) != Shared::nothing && !alike) return Status::from_errno(ENOTSUP);
  if (options.older_is_copy && older.view.version() != format::Version::v10)
    return Status::from_errno(ENOTSUP);
  Diff diff(older, newer, options, visitor, counters, problem);
  const DbRecord& old_main = older.snapshot.dbs[kMainDbi];
  const DbRecord& new_main = newer.snapshot.dbs[kMainDbi];
  if (options.only == nullptr) {
    const Status st = diff.main_database(old_main, new_main);
    return st.ok() ? diff.named_databases() : st;
  }
  if (options.only->empty()) return diff.main_database(old_main, new_main);
  DbRecord a{}, b{};
  const Status missing = Status::from_mdb(MDB_NOTFOUND);
  const Status in_older = find_database(older, *options.only, a, problem, options, &counters);
  problem.newer = false;
  if (!in_older.ok() && in_older != missing) return in_older;
  const Status in_newer = find_database(newer, *options.only, b, problem, options, &counters);
  if (!in_newer.ok()) {
    problem.newer = in_newer != missing;
    if (in_newer != missing || !in_older.ok()) return in_newer;
    b = empty_tree(a);
    visitor.database(*options.only, Change::deleted);
  } else if (!in_older.ok()) {
    a = empty_tree(b);
    visitor.database(*options.only, Change::inserted);
  } else if (a.flags != b.flags) {
    visitor.database(*options.only, Change::replaced);
  }
  return diff.database(*options.only, a, b);
}

Status find_appended(const DiffSide& side, const DbRecord& record, std::string_view name, Bytes key,
                     Bytes value, const DiffOptions& options, DiffVisitor& visitor, DiffCounters& counters,
                     DiffProblem& problem) {
  return Diff(side, side, options, visitor, counters, problem).appended(name, record, key, value);
}

}  // namespace lmdbio::tree
