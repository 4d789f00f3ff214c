#include "lmdbio/db/check.h"

#include <cerrno>

#include "lmdbio/db/check_pages.h"
#include "lmdbio/db/check_report.h"
#include "lmdbio/db/check_sets.h"
#include "lmdbio/db/compare.h"
#include "lmdbio/db/env.h"
#include "lmdbio/format/page_view.h"

namespace lmdbio::db {
namespace detail {
namespace {

using format::DbRecord;
using format::Pgno;

// Stock moves its cursor's stack of kMaxDepth up by one when it splits a root.
constexpr unsigned kDepthLimit = format::kMaxDepth - 1;
constexpr unsigned kKinds =
    format::kBranch | format::kLeaf | format::kOverflow | format::kMeta | format::kLeaf2 | format::kSubPage;
constexpr unsigned kDbFlags =
    MDB_REVERSEKEY | MDB_DUPSORT | MDB_INTEGERKEY | MDB_DUPFIXED | MDB_INTEGERDUP | MDB_REVERSEDUP;

class Checker {
 public:
  Checker(const cache::WindowView& file, const Snapshot& snapshot, const CheckOptions& options,
          CheckVisitor& visitor, CheckTotals& totals) noexcept
      : file_(file),
        snapshot_(snapshot),
        options_(options),
        visitor_(visitor),
        totals_(totals),
        report_(visitor, totals),
        accounts_(file.pages(), snapshot.last_pg, report_, totals) {}

  Status run() {
    if (!accounts_.reset()) return Status::from_errno(ENOMEM);
    totals_ = {};
    const std::uint64_t home = snapshot_.txnid & 1;
    visitor_.progress(0, accounts_.limit());
    database(DatabaseTotals::Kind::free, "(free)", home, snapshot_.dbs[kFreeDbi]);
    if (!report_.stopped()) database(DatabaseTotals::Kind::main, "(main)", home, snapshot_.dbs[kMainDbi]);
    if (!report_.stopped()) accounts_.lost();
    if (!report_.stopped()) visitor_.progress(accounts_.limit(), accounts_.limit());
    totals_.stopped = report_.stopped();
    return {};
  }

 private:
  // --- databases ---

  void database(DatabaseTotals::Kind kind, std::string_view label, std::uint64_t home,
                const DbRecord& record) {
    const bool free = kind == DatabaseTotals::Kind::free;
    Database db{};
    db.totals.kind = kind;
    db.totals.name = db.label = label;
    db.totals.home = home;
    db.totals.record = record;
    db.dups = !free && (record.flags & MDB_DUPSORT) != 0;
    db.dups_fixed = db.dups && (record.flags & MDB_DUPFIXED) != 0;
    db.key_order = free ? Comparator{Order::word} : default_key_order(record.flags);
    db.dup_order = default_dup_order(record.flags);
    Tree tree{db, record, home, false};
    // The free database's flags are the environment's, its pad the page size.
    if (free && (record.flags & MDB_DUPSORT) != 0)
      report_.wrong(tree, home, "the record's flags say that the free database has duplicates");
    if (!free && (record.flags & ~kDbFlags) != 0)
      report_.wrong(tree, home, "the record has unknown flags: 0x%x", record.flags);
    walk(tree);
    db.totals.entries = tree.entries;
    db.totals.depth = tree.depth;
    report_.end_of(db);
  }

  // --- trees ---

  void walk(Tree& tree) {
    const DbRecord& r = tree.record;
    const bool empty = r.root == format::kNoPage;
    if (!empty) {
      page(tree, r.root, tree.home, 1, {}, {});
    } else if (tree.dup) {
      report_.wrong(tree, tree.home, "duplicates without a page");
    }
    if (report_.stopped() || tree.broken) return;
    if (tree.depth != r.depth)
      report_.wrong(tree, tree.home, "the record says depth %u, the tree has %u", unsigned{r.depth},
                    tree.depth);
    const struct {
      const char* what;
      std::uint64_t says, has;
    } counts[] = {{"branch pages", r.branch_pages, tree.branch},
                  {"leaf pages", r.leaf_pages, tree.leaf},
                  {"overflow pages", r.overflow_pages, tree.overflow},
                  {"entries", r.entries, tree.entries}};
    for (const auto& c : counts)
      if (c.says != c.has)
        report_.tell(Severity::error, &tree.db, tree.home, 1, "the record says %llu %s, the tree has %llu",
                     ull(c.says), c.what, ull(c.has));
  }

  /// A page of a tree and all below it.  Keys k of it: low <= k < high, where given.
  void page(Tree& tree, Pgno pgno, std::uint64_t from, unsigned level, const Key& low, const Key& high) {
    const std::uint64_t p = format::raw(pgno);
    if (!accounts_.reachable(tree, p, 1, from, level == 1 ? "root" : "child")) return;
    if (level > kDepthLimit) {
      report_.wrong(tree, from, "the tree is deeper than %u levels", kDepthLimit);
      return;
    }
    if (!accounts_.use(tree, p, 1, from)) return;
    report_.seen(1, accounts_.limit());
    const std::byte* const at = file_.at(pgno);
    const std::size_t size = file_.page_size();
    if (const auto number = load<std::uint64_t>(at); number != p) {
      report_.wrong(tree, p, "its header has the number %llu", ull(number));
      return;
    }
    const unsigned flags = load<std::uint16_t>(at + format::kAtFlags) & kKinds;
    const std::size_t lower = load<std::uint16_t>(at + format::kAtLower),
                      upper = load<std::uint16_t>(at + format::kAtUpper);
    const bool fixed = tree.dup && tree.db.dups_fixed;
    const unsigned leaf_kind = fixed ? format::kLeaf | format::kLeaf2 : format::kLeaf;
    if (flags != format::kBranch && flags != leaf_kind) {
      report_.wrong(tree, p, "its flags 0x%x are not those of a page of this tree", flags);
      return;
    }
    const bool slotted = (flags & format::kLeaf2) == 0;
    if (lower < format::kPageHeader || lower % 2 != 0 || lower > upper || (slotted && upper > size)) {
      report_.wrong(tree, p, "bounds of its free space are wrong: lower %zu, upper %zu", lower, upper);
      return;
    }
    const unsigned count = static_cast<unsigned>((lower - format::kPageHeader) / 2);
    if (flags == format::kBranch) {
      ++tree.branch;
      ++tree.db.totals.branch_pages;
      tree.db.totals.tree_bytes += lower + (size - upper);
      branch(tree, at, p, count, upper, level, low, high);
      return;
    }
    ++tree.leaf;
    if (tree.depth == 0) tree.depth = level;
    if (tree.depth != level)
      report_.wrong(tree, p, "a leaf at depth %u, where the others are at %u", level, tree.depth);
    if (count == 0) {
      report_.wrong(tree, p, "a leaf without entries");
      return;
    }
    if (slotted) {
      ++tree.db.totals.leaf_pages;
      tree.db.totals.tree_bytes += lower + (size - upper);
      leaf(tree, at, p, count, upper, low, high);
    } else {
      ++tree.db.totals.leaf2_pages;
      const std::size_t item = tree.record.pad;
      if (load<std::uint16_t>(at + format::kAtPad) != item) {
        report_.wrong(tree, p, "its items have %u bytes, those of the tree %zu",
                      unsigned{load<std::uint16_t>(at + format::kAtPad)}, item);
        return;
      }
      tree.db.totals.tree_bytes += format::kPageHeader + count * item;
      items(tree, at, size, p, count, item, low, high);
      tree.entries += count;
    }
  }

  /// The node of slot `i`, up to the end of its header, inside the page and clear of the table.  False: told.
  bool node_at(Tree& tree, const std::byte* at, std::size_t size, std::uint64_t p, unsigned i,
               std::size_t upper, std::size_t& off) {
    off = load<std::uint16_t>(at + format::kPageHeader + 2 * i);
    if (off >= upper && off % 2 == 0 && off + format::kNodeHeader <= size) return true;
    report_.wrong(tree, p, "slot %u points to offset %zu, nodes are from %zu to %zu", i, off, upper, size);
    return false;
  }

  void branch(Tree& tree, const std::byte* at, std::uint64_t p, unsigned count, std::size_t upper,
              unsigned level, const Key& low, const Key& high) {
    const std::size_t size = file_.page_size();
    // Stock asserts two, but lets the free database rebalance with one.
    if (count < (tree.db.totals.kind == DatabaseTotals::Kind::free ? 1u : 2u)) {
      report_.wrong(tree, p, "a branch page with %u entries", count);
      if (count == 0) return;
    }
    scratch_.clear(size);
    for (unsigned i = 0; i < count && !report_.stopped(); ++i) {
      std::size_t off;
      if (!node_at(tree, at, size, p, i, upper, off)) return;
      const std::size_t end = off + format::kNodeHeader + load<std::uint16_t>(at + off + 6);
      if (end > size) {
        report_.wrong(tree, p, "the key of slot %u ends %zu bytes beyond the page", i, end - size);
        return;
      }
      if (!scratch_.take(off, end)) {
        report_.wrong(tree, p, "the node of slot %u overlaps another", i);
        return;
      }
    }
    Key here = low;
    for (unsigned i = 0; i < count && !report_.stopped(); ++i) {
      // Again, since a writer may be at work: nothing is taken for proved that was not loaded just now.
      Key next = high;
      if (i + 1 < count && !branch_key(at, size, i + 1, next)) return;
      std::size_t off = load<std::uint16_t>(at + format::kPageHeader + 2 * i);
      if (off + format::kNodeHeader > size) return;
      const Pgno child = format::Node{at + off}.child();
      if (options_.order && i > 0 && next.at != nullptr && !before(tree, here, next)) bad_order(tree, p);
      page(tree, child, p, level + 1, here, next);
      here = next;
    }
  }

  static bool branch_key(const std::byte* at, std::size_t size, unsigned i, Key& out) noexcept {
    const std::size_t off = load<std::uint16_t>(at + format::kPageHeader + 2 * i);
    if (off + format::kNodeHeader > size) return false;
    out = {at + off + format::kNodeHeader, load<std::uint16_t>(at + off + 6), at + size};
    return off + format::kNodeHeader + out.size <= size;
  }

  void leaf(Tree& tree, const std::byte* at, std::uint64_t p, unsigned count, std::size_t upper,
            const Key& low, const Key& high) {
    const std::size_t size = file_.page_size();
    NodeBytes taken(size);
    bool first = true;
    for (unsigned i = 0; i < count && !report_.stopped(); ++i) {
      std::size_t off;
      if (!node_at(tree, at, size, p, i, upper, off)) continue;
      const auto header = load<std::uint64_t>(at + off);
      const auto data_size = static_cast<std::uint32_t>(header);
      const unsigned flags = static_cast<std::uint16_t>(header >> 32);
      const std::size_t key_size = header >> 48;
      const std::size_t data_at = off + format::kNodeHeader + key_size;
      const std::size_t end = data_at + ((flags & format::kBigData) != 0 ? sizeof(Pgno) : data_size);
      if (end > size) {
        report_.wrong(tree, p, "the node of slot %u ends %zu bytes beyond the page", i, end - size);
        continue;
      }
      if (!taken.take(off, end)) {
        report_.wrong(tree, p, "the node of slot %u overlaps another", i);
        continue;
      }
      const Key key{at + off + format::kNodeHeader, key_size, at + size};
      if (options_.order) {
        if (first && low.at != nullptr && before(tree, key, low)) bad_order(tree, p);
        if (tree.last.at != nullptr && !before(tree, tree.last, key)) bad_order(tree, p);
        first = false;
        tree.last = key;
      }
      value(tree, p, i, flags, key, at + data_at, data_size);
    }
    if (options_.order && !first && high.at != nullptr && !before(tree, tree.last, high)) bad_order(tree, p);
  }

  void value(Tree& tree, std::uint64_t p, unsigned i, unsigned flags, const Key& key, const std::byte* data,
             std::uint32_t data_size) {
    const bool main = tree.db.totals.kind == DatabaseTotals::Kind::main;
    if (tree.dup) {
      if (flags != 0 || data_size != 0)
        report_.wrong(tree, p, "the duplicate of slot %u has flags 0x%x and %u bytes of data", i, flags,
                      data_size);
      ++tree.entries;
      place(tree, key.size, key.at, key.size, false);  // the key itself is the value
      return;
    }
    ++tree.db.totals.keys;
    if (tree.db.totals.kind == DatabaseTotals::Kind::free &&
        (key.size != sizeof(std::uint64_t) || load<std::uint64_t>(key.at) > snapshot_.txnid))
      report_.wrong(tree, p, "the key of slot %u is not the number of a transaction up to %llu", i,
                    ull(snapshot_.txnid));
    switch (flags) {
      case 0:
        ++tree.entries;
        if (tree.db.totals.kind == DatabaseTotals::Kind::free)
          accounts_.free_list(tree, p, i, data, data_size);
        else
          place(tree, key.size, data, data_size, false);
        return;
      case format::kBigData:
        ++tree.entries;
        overflow(tree, p, i, key.size, load<std::uint64_t>(data), data_size);
        return;
      case format::kSubData:
        ++tree.entries;
        if (main && !tree.db.dups && data_size == sizeof(DbRecord)) {
          const auto record = load<DbRecord>(data);
          database(DatabaseTotals::Kind::named, {reinterpret_cast<const char*>(key.at), key.size}, p, record);
          return;
        }
        break;
      case format::kSubData | format::kDupData:
        if (tree.db.dups && data_size == sizeof(DbRecord)) {
          const auto record = load<DbRecord>(data);
          Tree sub{tree.db, record, p, true};
          ++tree.db.totals.dup_trees;
          dup_key_bytes_ = key.size;
          walk(sub);
          tree.entries += sub.entries;
          tree.broken |= sub.broken;
          return;
        }
        break;
      case format::kDupData:
        if (tree.db.dups) {
          ++tree.db.totals.sub_pages;
          dup_key_bytes_ = key.size;
          sub_page(tree, p, i, data, data_size);
          return;
        }
        break;
      default:
        break;
    }
    report_.wrong(tree, p, "the node of slot %u has flags 0x%x and %u bytes, which this database cannot have",
                  i, flags, data_size);
  }

  void overflow(Tree& tree, std::uint64_t p, unsigned i, std::size_t key_size, std::uint64_t first,
                std::uint32_t size) {
    const std::uint64_t need = format::overflow_pages(size, file_.shift());
    if (!accounts_.reachable(tree, first, need, p, "overflow run")) return;
    const std::byte* const at = file_.at(Pgno{first});
    const auto number = load<std::uint64_t>(at);
    const unsigned kind = load<std::uint16_t>(at + format::kAtFlags) & kKinds;
    const std::uint64_t says = load<std::uint32_t>(at + format::kAtPages);
    std::uint64_t pages = need;
    if (number != first || kind != format::kOverflow) {
      report_.wrong(tree, first,
                    "not the overflow page that slot %u of page %llu wants: number %llu, flags 0x%x", i,
                    ull(p), ull(number), kind);
    } else if (says < need) {
      report_.wrong(tree, first, "its header says %llu pages, the %u bytes of slot %u of page %llu need %llu",
                    ull(says), size, i, ull(p), ull(need));
    } else if (accounts_.reachable(tree, first, says, first, "overflow run")) {
      pages =
          says;  // more than needed: stock writes a shorter value over a longer one of the same transaction
    }
    if (!accounts_.use(tree, first, pages, p)) return;
    report_.seen(pages, accounts_.limit());
    tree.overflow += pages;
    tree.db.totals.overflow_pages += pages;
    if (tree.db.totals.kind == DatabaseTotals::Kind::free)
      accounts_.free_list(tree, p, i, at + format::kPageHeader, size);
    else
      place(tree, key_size, at + format::kPageHeader, size, true);
  }

  void sub_page(Tree& tree, std::uint64_t p, unsigned slot, const std::byte* at, std::size_t size) {
    if (size < format::kPageHeader) {
      report_.wrong(tree, p, "the sub-page of slot %u has %zu bytes", slot, size);
      return;
    }
    const bool fixed = tree.db.dups_fixed;
    const unsigned flags = load<std::uint16_t>(at + format::kAtFlags) & kKinds;
    const std::size_t lower = load<std::uint16_t>(at + format::kAtLower),
                      upper = load<std::uint16_t>(at + format::kAtUpper);
    if (flags != (format::kLeaf | format::kSubPage | (fixed ? format::kLeaf2 : 0u))) {
      report_.wrong(tree, p, "the sub-page of slot %u has flags 0x%x", slot, flags);
      return;
    }
    if (lower <= format::kPageHeader || lower % 2 != 0 || (!fixed && (lower > upper || upper > size))) {
      report_.wrong(tree, p, "the sub-page of slot %u has wrong bounds: lower %zu, upper %zu, size %zu", slot,
                    lower, upper, size);
      return;
    }
    const unsigned count = static_cast<unsigned>((lower - format::kPageHeader) / 2);
    tree.entries += count;
    Tree sub{tree.db, tree.record, p, true};
    if (fixed) {
      items(sub, at, size, p, count, load<std::uint16_t>(at + format::kAtPad), {}, {});
      tree.broken |= sub.broken;
      return;
    }
    scratch_.clear(size);
    for (unsigned i = 0; i < count && !report_.stopped(); ++i) {
      const std::size_t off = load<std::uint16_t>(at + format::kPageHeader + 2 * i);
      if (off < upper || off % 2 != 0 || off + format::kNodeHeader > size) {
        report_.wrong(tree, p, "slot %u of the sub-page of slot %u points to offset %zu of %zu", i, slot, off,
                      size);
        return;
      }
      const auto header = load<std::uint64_t>(at + off);
      const std::size_t key_size = header >> 48, end = off + format::kNodeHeader + key_size;
      if ((header & 0xffffffffffffu) != 0 || end > size || !scratch_.take(off, end)) {
        report_.wrong(tree, p,
                      "node %u of the sub-page of slot %u is not a duplicate, or not inside it, or not apart "
                      "from others",
                      i, slot);
        return;
      }
      const Key value{at + off + format::kNodeHeader, key_size, at + size};
      if (options_.order && sub.last.at != nullptr && !before(sub, sub.last, value)) bad_order(sub, p);
      sub.last = value;
      place(sub, key_size, value.at, key_size, false);
    }
  }

  /// The items of a page or sub-page without slots: what `lower` and `upper` say beside their number means
  /// nothing.
  void items(Tree& tree, const std::byte* at, std::size_t size, std::uint64_t p, unsigned count,
             std::size_t item, const Key& low, const Key& high) {
    if (item == 0 || format::kPageHeader + count * item > size) {
      report_.wrong(tree, p, "%u items of %zu bytes are not in its %zu bytes", count, item, size);
      return;
    }
    if (!options_.order && !options_.records) return;
    for (unsigned i = 0; i < count; ++i) {
      const Key key{at + format::kPageHeader + i * item, item, at + size};
      if (options_.order) {
        if (i == 0 && low.at != nullptr && before(tree, key, low)) bad_order(tree, p);
        if (tree.last.at != nullptr && !before(tree, tree.last, key)) bad_order(tree, p);
        tree.last = key;
      }
      place(tree, item, key.at, item, false);
    }
    if (options_.order && high.at != nullptr && !before(tree, tree.last, high)) bad_order(tree, p);
  }

  void place(const Tree& tree, std::size_t key_bytes, const std::byte* value, std::size_t bytes,
             bool overflow) {
    if (options_.records)
      visitor_.record({tree.dup ? dup_key_bytes_ : key_bytes, bytes,
                       static_cast<std::uint64_t>(value - file_.base()), overflow});
  }

  const cache::WindowView file_;
  const Snapshot& snapshot_;
  const CheckOptions options_;
  CheckVisitor& visitor_;
  CheckTotals& totals_;
  CheckReport report_;
  PageAccounts accounts_;
  std::size_t dup_key_bytes_ = 0;
  NodeBytes scratch_{0};  ///< of one branch page or sub-page: not across calls
};

}  // namespace
}  // namespace detail

Status check_snapshot(const cache::WindowView& file, const Snapshot& snapshot, const CheckOptions& options,
                      CheckVisitor& visitor, CheckTotals& totals) {
  return detail::Checker(file, snapshot, options, visitor, totals).run();
}

}  // namespace lmdbio::db
