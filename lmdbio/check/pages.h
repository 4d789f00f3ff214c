// Records which pages of a snapshot are in use, free, or neither.  Internal to the check.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lmdbio/check/report.h"
#include "lmdbio/check/sets.h"

namespace lmdbio::check {

/// Checks that each page of a file has one use: by a tree, or in the free list.
class PageAccounts {
 public:
  /// Makes accounts for a file of `file_pages` whole pages and a snapshot up to page `last_pg`.  Adds the
  /// sums to `totals`.
  PageAccounts(std::uint64_t file_pages, std::uint64_t last_pg, Report& report, Totals& totals) noexcept
      : file_pages_(file_pages),
        last_pg_(last_pg),
        limit_(last_pg < file_pages ? last_pg + 1 : file_pages),
        report_(report),
        totals_(totals) {}

  /// Returns false if there is no memory.
  bool reset() noexcept { return used_.reset(limit_) && free_.reset(limit_); }
  /// Returns the number of pages of the snapshot that the file has.
  std::uint64_t limit() const noexcept { return limit_; }
  /// Returns whether the `n` pages from `p` on are inside the snapshot and the file.  Reports an error if
  /// not.  `from`: the page that names `p`.
  bool reachable(Tree& tree, std::uint64_t p, std::uint64_t n, std::uint64_t from, const char* what);
  /// Marks pages as in use; they must be reachable.  Reports an error and returns false if one is in use
  /// already.
  bool use(Tree& tree, std::uint64_t p, std::uint64_t n, std::uint64_t from);
  /// Adds the free list in slot `i` of page `p`.  The list consists of a count and this many page numbers,
  /// the largest first.
  void free_list(Tree& tree, std::uint64_t p, unsigned i, const std::byte* data, std::uint32_t size);
  /// Counts the pages that are neither used nor free.  Call it after all trees.  If `which`, reports these
  /// pages.
  void lost(bool which);

 private:
  const std::uint64_t file_pages_, last_pg_, limit_;
  Report& report_;
  Totals& totals_;
  std::uint64_t free_beyond_ = 0;  ///< free pages beyond the end of the file
  PageSet used_, free_;
};

}  // namespace lmdbio::check
