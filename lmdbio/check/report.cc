#include "lmdbio/check/report.h"

#include <cstdarg>
#include <cstdio>

namespace lmdbio::check {
namespace {

constexpr std::size_t kLongestReason = 256;
constexpr std::uint64_t kProgressEvery = 64;  // calls of seen()

}  // namespace

void Report::tell(Severity severity, const Database* db, std::uint64_t page, std::uint64_t pages,
                  const char* format, ...) {
  char text[kLongestReason];
  va_list args;
  va_start(args, format);
  (void)std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  tell_text(severity, db, page, pages, text);
}

void Report::wrong(Tree& tree, std::uint64_t page, const char* format, ...) {
  tree.broken = true;
  char text[kLongestReason];
  va_list args;
  va_start(args, format);
  (void)std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  tell_text(Severity::error, &tree.db, page, 1, text);
}

void Report::tell_text(Severity severity, const Database* db, std::uint64_t page, std::uint64_t pages,
                       const char* text) {
  if (stopped_) return;
  ++(severity == Severity::error ? totals_.errors : totals_.warnings);
  if (!visitor_.finding({severity, page, pages, db == nullptr ? std::string_view() : db->label, text}))
    stopped_ = true;
}

void Report::seen(std::uint64_t pages, std::uint64_t all) {
  seen_ += pages;
  if (cancelled_ != nullptr && cancelled_->load(std::memory_order_relaxed)) stopped_ = true;
  if (++steps_ % kProgressEvery == 0) visitor_.progress(seen_, all);
}

void Report::end_of(const Database& db) {
  tell_order(db);
  const DatabaseTotals& of = db.totals;
  totals_.branch_pages += of.branch_pages;
  totals_.leaf_pages += of.leaf_pages;
  totals_.leaf2_pages += of.leaf2_pages;
  totals_.overflow_pages += of.overflow_pages;
  if (of.kind == DatabaseTotals::Kind::main)
    totals_.entries += of.entries - totals_.named;
  else if (of.kind == DatabaseTotals::Kind::named)
    totals_.entries += of.entries, ++totals_.named;
  if (of.depth > totals_.depth) totals_.depth = of.depth;
  if (!stopped_) visitor_.database(of);
}

void Report::tell_order(const Database& db) {
  const bool free = db.totals.kind == DatabaseTotals::Kind::free;
  const char* const hint = free ? "" : " for LMDB's default comparators (the program may set its own)";
  if (db.bad_keys != 0)
    tell(free ? Severity::error : Severity::warning, &db, db.first_bad_key, 1,
         "key out of order%s; keys out of order in this database: %llu", hint, ull(db.bad_keys));
  if (db.bad_dups != 0)
    tell(Severity::warning, &db, db.first_bad_dup, 1,
         "duplicate out of order%s; duplicates out of order in this database: %llu", hint, ull(db.bad_dups));
}

bool before_by_rule(const Tree& tree, const Key& a, const Key& b) {
  Comparator by = tree.order();
  if (by.order == Order::uint && a.size == sizeof(std::size_t)) by.order = Order::word;
  const MDB_val x{a.size, const_cast<std::byte*>(a.at)}, y{b.size, const_cast<std::byte*>(b.at)};
  return compare(by, x, y, b.end) < 0;
}

void bad_order(const Tree& tree, std::uint64_t p) noexcept {
  Database& db = tree.db;
  std::uint64_t& count = tree.dup ? db.bad_dups : db.bad_keys;
  if (count++ == 0) (tree.dup ? db.first_bad_dup : db.first_bad_key) = p;
}

}  // namespace lmdbio::check
