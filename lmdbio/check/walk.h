// Walks the trees of a snapshot for a check.  Internal to the check.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lmdbio/check/ahead.h"
#include "lmdbio/check/check.h"
#include "lmdbio/check/pages.h"
#include "lmdbio/check/report.h"
#include "lmdbio/check/sets.h"

namespace lmdbio::check {

/// Page flags that give the kind of a page.
inline constexpr unsigned kKinds =
    format::kBranch | format::kLeaf | format::kOverflow | format::kMeta | format::kLeaf2 | format::kSubPage;

/// Performs one check.  The parameters are those of check_snapshot().  `at`: the bytes of page `p`, or of a
/// sub-page in it.
class Checker {
 public:
  Checker(const window::WindowView& file, const Snapshot& snapshot, const Options& options, Visitor& visitor,
          Totals& totals) noexcept
      : file_(file),
        snapshot_(snapshot),
        options_(options),
        visitor_(visitor),
        totals_(totals),
        report_(visitor, totals, options.cancelled),
        accounts_(file.pages(), snapshot.last_pg, report_, totals),
        ahead_(options.file, file, options.cancelled) {}

  Status run();

 private:
  // check.cc
  void database(DatabaseTotals::Kind kind, std::string_view label, std::uint64_t home,
                const format::DbRecord& record);
  void walk(Tree& tree);
  void walk_pages(Tree& tree);
  /// Checks a page of a tree and all pages below it.  All keys k must satisfy low <= k < high, as far as
  /// these bounds are given.
  void page(Tree& tree, format::Pgno pgno, std::uint64_t from, unsigned level, const Key& low,
            const Key& high);
  /// Sets `off` to the node of slot `i`.  Reports an error and returns false unless the node's header is
  /// inside the page and outside the slot table.
  bool node_at(Tree& tree, const std::byte* at, std::size_t size, std::uint64_t p, unsigned i,
               std::size_t upper, std::size_t& off);
  void branch(Tree& tree, const std::byte* at, std::uint64_t p, unsigned count, std::size_t upper,
              unsigned level, const Key& low, const Key& high);
  bool branch_key(const std::byte* at, std::size_t size, unsigned i, Key& out) const noexcept;
  void leaf(Tree& tree, const std::byte* at, std::uint64_t p, unsigned count, std::size_t upper,
            const Key& low, const Key& high);
  // values.cc
  void value(Tree& tree, std::uint64_t p, unsigned i, unsigned flags, const Key& key, const std::byte* data,
             std::uint32_t data_size);
  void overflow(Tree& tree, std::uint64_t p, unsigned i, std::size_t key_size, const std::byte* record,
                std::uint32_t size);
  bool use_run(Tree& tree, std::uint64_t p, std::uint64_t first, std::uint64_t pages);
  void sub_page(Tree& tree, std::uint64_t p, unsigned slot, const std::byte* at, std::size_t size);
  /// Checks the items of a page or sub-page without slots.  There, the free-space bounds `lower` and
  /// `upper` mean nothing except for the number of items.
  void items(Tree& tree, const std::byte* at, std::size_t size, std::uint64_t p, unsigned count,
             std::size_t item, const Key& low, const Key& high);
  void place(const Tree& tree, std::size_t key_bytes, const std::byte* value, std::size_t bytes,
             bool overflow);

  format::PageHeader header(const std::byte* page) const noexcept { return {page, file_.version()}; }
  std::size_t header_bytes() const noexcept { return format::page_header(file_.version()); }

  const window::WindowView file_;
  const Snapshot& snapshot_;
  const Options options_;
  Visitor& visitor_;
  Totals& totals_;
  Report report_;
  PageAccounts accounts_;
  ReadAhead ahead_;
  std::uint64_t unseen_ = 0;  ///< pages of overflow runs that are counted only in the records of databases
  std::size_t dup_key_bytes_ = 0;
  NodeBytes scratch_{0};  ///< of one branch page or sub-page; not across calls
};

}  // namespace lmdbio::check
