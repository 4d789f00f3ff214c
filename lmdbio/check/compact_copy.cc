// Checks what stock's compacting copy requires of a file.  Follows mdb_env_copyfd1 and mdb_env_cwalk in mdb.c
// of 0.9.24 and 1.0.1.

#include <cerrno>

#include "lmdbio/check/check.h"
#include "lmdbio/check/sets.h"
#include "lmdbio/format/page_view.h"

namespace lmdbio::check {
namespace {

using format::DbRecord;
using format::Pgno;

// mdb_env_cwalk's cursor has a stack of kMaxDepth pages.  Stock checks its bounds only on the first descent.
constexpr unsigned kDepthLimit = format::kMaxDepth - 1;
// mdb_env_cwalk calls itself for each record in a tree: main, named, duplicates.  Crafted files may nest
// trees more deeply.
constexpr unsigned kNestingLimit = 8;

class CopyChecker {
 public:
  CopyChecker(const window::WindowView& file, const Snapshot& snapshot, CopyHazard& why) noexcept
      : file_(file), version_(file.version()), snapshot_(snapshot), why_(why) {}

  Status run() noexcept {
    const std::uint64_t home = snapshot_.txnid & 1;
    const DbRecord& free = snapshot_.dbs[0];
    // Stock asserts that a cursor has room for duplicates if its database has duplicates.  Stock's cursor on
    // the free database has no such room.  If the main database is empty, stock does not read the free
    // database.
    if (snapshot_.dbs[1].root == format::kNoPage) return {};
    if ((free.flags & MDB_DUPSORT) != 0) return hazard(home, "the free database has duplicates");
    if (free.root != format::kNoPage) {
      // Stock only reads the free database, and the cursor stops at the last page.  So the free database may
      // share pages with other trees.
      if (!used_.reset(limit())) return Status::from_errno(ENOMEM);
      if (format::raw(free.root) < 2) return hazard(home, "the root of the free database is a meta page");
      unsigned depth = 0;
      if (const Status st = tree(free.root, home, 1, depth, Role::free, 0); !st.ok()) return st;
    }
    if (!used_.reset(limit())) return Status::from_errno(ENOMEM);
    unsigned depth = 0;
    return tree(snapshot_.dbs[1].root, home, 1, depth, Role::records, 0);
  }

 private:
  enum class Role : unsigned char { free, records, duplicates };
  format::PageHeader header(const std::byte* page) const noexcept { return {page, version_}; }

  Status hazard(std::uint64_t page, const char* reason, int rc = MDB_CORRUPTED) noexcept {
    why_ = {page, reason};
    return Status::from_mdb(rc);
  }
  std::uint64_t limit() const noexcept {
    return snapshot_.last_pg < file_.pages() ? snapshot_.last_pg + 1 : file_.pages();
  }
  /// Checks that stock's mdb_page_get returns the `n` pages from `p` on, and that they exist.  `from`: the
  /// page that names them.
  Status reach(Pgno p, std::uint64_t n, std::uint64_t from) noexcept {
    if (format::raw(p) > snapshot_.last_pg)
      return hazard(from, "refers to a page beyond the last page", MDB_PAGE_NOTFOUND);
    if (format::raw(p) >= limit() || n > limit() - format::raw(p))
      return hazard(from, "refers to a page beyond the end of the file");
    return {};
  }

  Status tree(Pgno pgno, std::uint64_t from, unsigned level, unsigned& depth, Role role,
              unsigned nesting) noexcept {
    if (const Status st = reach(pgno, 1, from); !st.ok()) return st;
    const std::uint64_t p = format::raw(pgno);
    if (level > kDepthLimit) return hazard(from, "the tree is too deep", MDB_CURSOR_FULL);
    if (!used_.add(p)) return hazard(p, "the page is used twice");
    const std::byte* const at = file_.at(pgno);
    const std::size_t size = file_.page_size();
    const unsigned flags = header(at).flags();
    const std::size_t lower = header(at).lower(), upper = header(at).upper();
    const bool is_branch = (flags & format::kBranch) != 0, is_leaf2 = (flags & format::kLeaf2) != 0;
    if (is_branch == ((flags & format::kLeaf) != 0)) return hazard(p, "neither a branch page nor a leaf");
    const std::size_t slots = format::page_header(version_);
    if (lower < slots || lower > upper) return hazard(p, "the bounds of its free space are wrong");
    // mdb_page_copy of a LEAF2 page counts from the page's end.
    if (is_leaf2 ? ((upper - lower) & ~std::size_t{7}) > size || is_branch : upper > size)
      return hazard(p, "the bounds of its free space are wrong");
    const unsigned count = static_cast<unsigned>((lower - slots) / 2);
    if (is_branch) {
      if (count == 0) return hazard(p, "a branch page without entries");
      return branch(at, p, count, upper, level, depth, role, nesting);
    }
    // Stock allocates buffers for the levels of its first descent.  If a level has no buffer, stock copies a
    // branch page into the file's mapping.
    if (depth == 0) depth = level;
    if (depth != level) return hazard(p, "leaf pages at different depths");
    if (role == Role::free && is_leaf2) return hazard(p, "a page of fixed-size items in the free database");
    if (role == Role::free && count == 0) return hazard(p, "an empty leaf in the free database");
    if (role == Role::duplicates || is_leaf2) return {};
    return leaf(at, p, count, upper, role, nesting);
  }

  Status branch(const std::byte* at, std::uint64_t p, unsigned count, std::size_t upper, unsigned level,
                unsigned& depth, Role role, unsigned nesting) noexcept {
    const std::size_t size = file_.page_size();
    scratch_.clear(size);
    for (unsigned i = 0; i < count; ++i) {
      const std::size_t off = header(at).slot(i);
      if (off < upper || off + format::kNodeHeader > size)
        return hazard(p, "a slot points outside the nodes");
      // Stock writes new page numbers into the headers in a copy of the page.
      if (!scratch_.take(off, off + format::kNodeHeader)) return hazard(p, "two nodes overlap");
    }
    for (unsigned i = 0; i < count; ++i) {
      const std::size_t off = header(at).slot(i);
      if (off + format::kNodeHeader > size) return hazard(p, "a slot points outside the nodes");
      if (const Status st = tree(format::Node{at + off}.child(), p, level + 1, depth, role, nesting);
          !st.ok())
        return st;
    }
    return {};
  }

  Status leaf(const std::byte* at, std::uint64_t p, unsigned count, std::size_t upper, Role role,
              unsigned nesting) noexcept {
    const std::size_t size = file_.page_size(), run = format::run_record(version_);
    NodeBytes taken(size);
    for (unsigned i = 0; i < count; ++i) {
      const std::size_t off = header(at).slot(i);
      if (off < upper || off + format::kNodeHeader > size)
        return hazard(p, "a slot points outside the nodes");
      const auto header = load<std::uint64_t>(at + off);
      const auto data_size = static_cast<std::uint32_t>(header);
      const unsigned flags = static_cast<std::uint16_t>(header >> 32);
      const std::size_t data_at = off + format::kNodeHeader + format::data_after_key(version_, header >> 48);
      const bool big = (flags & format::kBigData) != 0, sub = !big && (flags & format::kSubData) != 0;
      if (role == Role::free) {
        if ((flags & format::kDupData) != 0) return hazard(p, "duplicates in the free database");
        if (data_at + (big ? run : sizeof(std::uint64_t)) > size)
          return hazard(p, "a node ends beyond the page");
        if (big) {
          if (const Status st = reach(load<Pgno>(at + data_at), 1, p); !st.ok()) return st;
        }
        continue;
      }
      // Stock writes to these bytes in a copy of the page, and the copy lacks the page's free space.
      const std::size_t end = data_at + (big ? run : sub ? sizeof(DbRecord) : 0);
      if ((big || sub) && end > size) return hazard(p, "a node ends beyond the page");
      if (!taken.take(off, big || sub ? end : off + format::kNodeHeader))
        return hazard(p, "two nodes overlap");
      if (big) {
        if (const Status st = overflow(at + data_at, data_size, p); !st.ok()) return st;
      } else if (sub) {
        const auto record = load<DbRecord>(at + data_at);
        if (record.root == format::kNoPage) continue;
        if (nesting == kNestingLimit) return hazard(p, "databases are nested too deeply");
        unsigned depth = 0;
        const Role below = (flags & format::kDupData) != 0 ? Role::duplicates : Role::records;
        if (const Status st = tree(record.root, p, 1, depth, below, nesting + 1); !st.ok()) return st;
      }
    }
    return {};
  }

  /// Checks the overflow run of the record at `run`.  0.9 copies as many pages as the run's first page says,
  /// 1.0 as many as the record says.
  Status overflow(const std::byte* run, std::uint32_t size, std::uint64_t from) noexcept {
    constexpr std::size_t kAtPages = 16;
    const auto first = load<Pgno>(run);
    if (const Status st = reach(first, 1, from); !st.ok()) return st;
    const std::uint64_t p = format::raw(first);
    const std::uint64_t pages = version_ == format::Version::v10 ? load<std::uint64_t>(run + kAtPages)
                                                                 : header(file_.at(first)).pages();
    if (pages < file_.overflow_pages(size)) return hazard(p, "an overflow run is shorter than its value");
    if (pages > limit() - p) return hazard(p, "an overflow run ends beyond the file");
    for (std::uint64_t i = p; i < p + pages; ++i)
      if (!used_.add(i)) return hazard(i, "the page is used twice");
    return {};
  }

  const window::WindowView file_;
  const format::Version version_;
  const Snapshot& snapshot_;
  CopyHazard& why_;
  PageSet used_;
  NodeBytes scratch_{0};  ///< of one branch page
};

}  // namespace

Status check_compact_copy(const window::WindowView& file, const Snapshot& snapshot,
                          CopyHazard& why) noexcept {
  return CopyChecker(file, snapshot, why).run();
}

}  // namespace lmdbio::check
