// Collects the findings and sums of a check, and compares keys.  Internal to the check.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lmdbio/check/check.h"
#include "lmdbio/format/compare.h"

namespace lmdbio::check {

using format::Comparator;
using format::Order;

inline unsigned long long ull(std::uint64_t v) noexcept { return v; }

/// A key in place; null if there is none.
struct Key {
  const std::byte* at = nullptr;
  std::size_t size = 0;
  const std::byte* end = nullptr;  ///< end of the page's memory
};

/// A database while its trees are walked.
struct Database {
  DatabaseTotals totals;
  std::string_view label;
  Comparator key_order, dup_order;
  bool dups, dups_fixed;
  // Numbers of keys and duplicates that are out of order, and the first pages with such a key or duplicate.
  std::uint64_t bad_keys = 0, bad_dups = 0;
  std::uint64_t first_bad_key = 0, first_bad_dup = 0;
};

/// A tree: a database's own, or the duplicates of one key.
struct Tree {
  Database& db;
  const format::DbRecord& record;
  std::uint64_t home;  ///< the page that holds the record
  bool dup;
  unsigned depth = 0;  ///< of the first leaf page; 0: none yet
  std::uint64_t branch = 0, leaf = 0, overflow = 0, entries = 0;
  bool read_ahead = false;
  bool broken = false;  ///< part of it was not walked, so counts mean nothing
  Key last{};           ///< the last key seen

  const Comparator& order() const noexcept { return dup ? db.dup_order : db.key_order; }
};

/// Passes findings to the visitor and counts them.  Reports no further finding once the walk has ended.
class Report {
 public:
  /// `cancelled`: see Options.
  Report(Visitor& visitor, Totals& totals, const std::atomic<bool>* cancelled) noexcept
      : visitor_(visitor), totals_(totals), cancelled_(cancelled) {}

  /// Returns whether the walk is to end.
  bool stopped() const noexcept { return stopped_; }
  std::uint64_t errors() const noexcept { return totals_.errors; }
  /// Reports a finding.  `db`: null if the finding belongs to no database.
  [[gnu::format(printf, 6, 7)]] void tell(Severity severity, const Database* db, std::uint64_t page,
                                          std::uint64_t pages, const char* format, ...);
  /// Reports an error at one page.  The tree's counts mean nothing afterwards.
  [[gnu::format(printf, 4, 5)]] void wrong(Tree& tree, std::uint64_t page, const char* format, ...);
  /// Records that `pages` more pages of `all` were seen, and reports progress now and then.  Ends the walk
  /// if it is cancelled.
  void seen(std::uint64_t pages, std::uint64_t all);
  /// Returns the number of pages seen, including the meta pages.
  std::uint64_t pages_seen() const noexcept { return seen_; }
  /// Ends a database that was walked: reports keys that were out of order, and adds its sums to the totals.
  void end_of(const Database& db);

 private:
  void tell_order(const Database& db);
  void tell_text(Severity severity, const Database* db, std::uint64_t page, std::uint64_t pages,
                 const char* text);

  Visitor& visitor_;
  Totals& totals_;
  const std::atomic<bool>* const cancelled_;
  std::uint64_t seen_ = 2, steps_ = 0;  ///< pages, including the meta pages; calls of seen()
  bool stopped_ = false;
};

/// Returns whether `a` is before `b` in the order of the tree's keys.  The keys of a tree of duplicates are
/// values.
bool before_by_rule(const Tree& tree, const Key& a, const Key& b);
inline bool before(const Tree& tree, const Key& a, const Key& b) {
  return tree.order().order == Order::memn ? format::compare_memn(a.at, a.size, b.at, b.size) < 0
                                           : before_by_rule(tree, a, b);
}
/// Counts keys on page `p` that are out of order.
void bad_order(const Tree& tree, std::uint64_t p) noexcept;

}  // namespace lmdbio::check
