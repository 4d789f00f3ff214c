#include "lmdbio/check/check.h"

#include <algorithm>
#include <cerrno>
#include <span>

#include "lmdbio/check/walk.h"
#include "lmdbio/format/compare.h"
#include "lmdbio/tree/env.h"

namespace lmdbio::check {

using format::DbRecord;
using format::default_dup_order;
using format::default_key_order;
using format::Pgno;
using tree::kFreeDbi;
using tree::kMainDbi;

namespace {

// When stock splits a root, it moves its cursor's stack of kMaxDepth pages up by one.
constexpr unsigned kDepthLimit = format::kMaxDepth - 1;
constexpr unsigned kDbFlags =
    MDB_REVERSEKEY | MDB_DUPSORT | MDB_INTEGERKEY | MDB_DUPFIXED | MDB_INTEGERDUP | MDB_REVERSEDUP;

}  // namespace

Status Checker::run() {
  if (!accounts_.reset()) return Status::from_errno(ENOMEM);
  totals_ = {};
  const std::uint64_t home = snapshot_.txnid & 1;
  visitor_.progress(0, accounts_.limit());
  database(DatabaseTotals::Kind::free, "(free)", home, snapshot_.dbs[kFreeDbi]);
  if (!report_.stopped()) database(DatabaseTotals::Kind::main, "(main)", home, snapshot_.dbs[kMainDbi]);
  if (!report_.stopped()) {
    accounts_.lost(options_.overflow_headers);
    if (unseen_ > totals_.lost_pages)
      report_.tell(Severity::error, nullptr, home, 1,
                   "the database records count %llu overflow pages too many", ull(unseen_));
    totals_.lost_pages -= std::min(totals_.lost_pages, unseen_);
  }
  visitor_.progress(report_.stopped() ? report_.pages_seen() : accounts_.limit(), accounts_.limit());
  totals_.stopped = report_.stopped();
  return {};
}

// --- databases ---

void Checker::database(DatabaseTotals::Kind kind, std::string_view label, std::uint64_t home,
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
  // In the free database's record, the flags are those of the environment, and the pad is the page size.
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

void Checker::walk(Tree& tree) {
  const DbRecord& r = tree.record;
  const bool empty = r.root == format::kNoPage;
  if (!empty) {
    walk_pages(tree);
  } else if (tree.dup) {
    report_.wrong(tree, tree.home, "the tree of duplicates has no pages");
  }
  if (report_.stopped() || tree.broken) return;
  if (tree.depth != r.depth)
    report_.wrong(tree, tree.home, "depth: %u in the record, %u in the tree", unsigned{r.depth}, tree.depth);
  if (!options_.overflow_headers && r.overflow_pages > tree.overflow) {
    // If a shorter value replaces a longer one, the pages at the end of the run remain, and the run's header
    // counts them.
    const std::uint64_t more = r.overflow_pages - tree.overflow;
    tree.overflow += more;
    tree.db.totals.overflow_pages += more;
    unseen_ += more;
  }
  const struct {
    const char* what;
    std::uint64_t says, has;
  } counts[] = {{"branch pages", r.branch_pages, tree.branch},
                {"leaf pages", r.leaf_pages, tree.leaf},
                {"overflow pages", r.overflow_pages, tree.overflow},
                {"entries", r.entries, tree.entries}};
  // In 1.0, the first two also count the pages of trees of duplicates.
  constexpr unsigned kOverflowCount = 2;
  const bool counts_dups = file_.version() == format::Version::v10 && tree.db.dups && !tree.dup;
  for (const auto& c : std::span(counts).subspan(counts_dups ? kOverflowCount : 0))
    if (c.says != c.has)
      report_.tell(Severity::error, &tree.db, tree.home, 1,
                   "number of %s: %llu in the record, %llu in the tree", c.what, ull(c.says), ull(c.has));
}

void Checker::walk_pages(Tree& tree) {
  // The root was read with the page that names it, and a leaf page of duplicates names no pages.
  const bool single = tree.dup && tree.record.depth <= 1;
  tree.read_ahead = ahead_.on() && !single;
  if (tree.read_ahead) {
    using Runs = ReadAhead::Runs;
    const bool free = tree.db.totals.kind == DatabaseTotals::Kind::free;
    ahead_.enter(format::raw(tree.record.root), tree.record.depth,
                 free                        ? Runs::whole
                 : options_.overflow_headers ? Runs::headers
                                             : Runs::none);
  }
  page(tree, tree.record.root, tree.home, 1, {}, {});
  if (tree.read_ahead) ahead_.leave();
}

void Checker::page(Tree& tree, Pgno pgno, std::uint64_t from, unsigned level, const Key& low,
                   const Key& high) {
  const std::uint64_t p = format::raw(pgno);
  if (!accounts_.reachable(tree, p, 1, from, level == 1 ? "root" : "child")) return;
  if (level > kDepthLimit) {
    report_.wrong(tree, from, "the tree is deeper than %u levels", kDepthLimit);
    return;
  }
  if (!accounts_.use(tree, p, 1, from)) return;
  report_.seen(1, accounts_.limit());
  if (tree.read_ahead && level == tree.record.depth) ahead_.reach(p);
  if (report_.stopped()) return;
  const std::byte* const at = file_.at(pgno);
  const std::size_t size = file_.page_size();
  if (const auto number = load<std::uint64_t>(at); number != p) {
    report_.wrong(tree, p, "the page number in its header is %llu", ull(number));
    return;
  }
  if (file_.version() == format::Version::v10) {
    const auto written = load<std::uint64_t>(at + format::kAtTxnid);
    if (written > snapshot_.txnid) {
      report_.wrong(tree, p, "transaction %llu has written it, after this snapshot", ull(written));
      return;
    }
  }
  const unsigned flags = header(at).flags() & kKinds;
  const std::size_t lower = header(at).lower(), upper = header(at).upper();
  const bool fixed = tree.dup && tree.db.dups_fixed;
  const unsigned leaf_kind = fixed ? format::kLeaf | format::kLeaf2 : format::kLeaf;
  if (flags != format::kBranch && flags != leaf_kind) {
    report_.wrong(tree, p, "its flags, 0x%x, are not valid in this tree", flags);
    return;
  }
  const bool slotted = (flags & format::kLeaf2) == 0;
  if (lower < header_bytes() || lower % 2 != 0 || lower > upper || (slotted && upper > size)) {
    report_.wrong(tree, p, "the bounds of its free space are wrong: lower %zu, upper %zu", lower, upper);
    return;
  }
  const unsigned count = static_cast<unsigned>((lower - header_bytes()) / 2);
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
    report_.wrong(tree, p, "a leaf page at depth %u; the others are at depth %u", level, tree.depth);
  if (count == 0) {
    report_.wrong(tree, p, "a leaf page without entries");
    return;
  }
  if (slotted) {
    ++tree.db.totals.leaf_pages;
    tree.db.totals.tree_bytes += lower + (size - upper);
    leaf(tree, at, p, count, upper, low, high);
  } else {
    ++tree.db.totals.leaf2_pages;
    const std::size_t item = tree.record.pad;
    if (header(at).pad() != item) {
      report_.wrong(tree, p, "its items have %u bytes, but items of this tree have %zu", header(at).pad(),
                    item);
      return;
    }
    tree.db.totals.tree_bytes += header_bytes() + count * item;
    items(tree, at, size, p, count, item, low, high);
    tree.entries += count;
  }
}

bool Checker::node_at(Tree& tree, const std::byte* at, std::size_t size, std::uint64_t p, unsigned i,
                      std::size_t upper, std::size_t& off) {
  off = header(at).slot(i);
  if (off >= upper && off % 2 == 0 && off + format::kNodeHeader <= size) return true;
  report_.wrong(tree, p, "slot %u points to the invalid offset %zu; nodes are between %zu and %zu", i, off,
                upper, size);
  return false;
}

void Checker::branch(Tree& tree, const std::byte* at, std::uint64_t p, unsigned count, std::size_t upper,
                     unsigned level, const Key& low, const Key& high) {
  const std::size_t size = file_.page_size();
  // Stock asserts that there are two entries, but one is enough when it rebalances the free database.
  if (count < (tree.db.totals.kind == DatabaseTotals::Kind::free ? 1u : 2u)) {
    report_.wrong(tree, p, "too few entries for a branch page: %u", count);
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
      report_.wrong(tree, p, "the node of slot %u overlaps another node", i);
      return;
    }
  }
  Key here = low;
  for (unsigned i = 0; i < count && !report_.stopped(); ++i) {
    // Load and check the offsets again, because a writer may have changed the page since.
    Key next = high;
    if (i + 1 < count && !branch_key(at, size, i + 1, next)) return;
    std::size_t off = header(at).slot(i);
    if (off + format::kNodeHeader > size) return;
    const Pgno child = format::Node{at + off}.child();
    if (options_.order && i > 0 && next.at != nullptr && !before(tree, here, next)) bad_order(tree, p);
    page(tree, child, p, level + 1, here, next);
    here = next;
  }
}

bool Checker::branch_key(const std::byte* at, std::size_t size, unsigned i, Key& out) const noexcept {
  const std::size_t off = header(at).slot(i);
  if (off + format::kNodeHeader > size) return false;
  out = {at + off + format::kNodeHeader, load<std::uint16_t>(at + off + 6), at + size};
  return off + format::kNodeHeader + out.size <= size;
}

void Checker::leaf(Tree& tree, const std::byte* at, std::uint64_t p, unsigned count, std::size_t upper,
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
    const std::size_t data_at = off + format::kNodeHeader + format::data_after_key(file_.version(), key_size);
    const std::size_t end =
        data_at + ((flags & format::kBigData) != 0 ? format::run_record(file_.version()) : data_size);
    if (end > size) {
      report_.wrong(tree, p, "the node of slot %u ends %zu bytes beyond the page", i, end - size);
      continue;
    }
    if (!taken.take(off, end)) {
      report_.wrong(tree, p, "the node of slot %u overlaps another node", i);
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

Status check_snapshot(const window::WindowView& file, const Snapshot& snapshot, const Options& options,
                      Visitor& visitor, Totals& totals) {
  return Checker(file, snapshot, options, visitor, totals).run();
}

}  // namespace lmdbio::check
