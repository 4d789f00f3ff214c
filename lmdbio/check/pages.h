// Which pages of a snapshot are in use, free, or neither.  Internal to the check.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lmdbio/check/report.h"
#include "lmdbio/check/sets.h"

namespace lmdbio::check {

/// Each page of a file has one use: by a tree, or in the free list.
class PageAccounts {
 public:
  /// Of a file of `file_pages` whole pages and a snapshot up to `last_pg`.  Sums go into `totals`.
  PageAccounts(std::uint64_t file_pages, std::uint64_t last_pg, Report& report, Totals& totals) noexcept
      : file_pages_(file_pages),
        last_pg_(last_pg),
        limit_(last_pg < file_pages ? last_pg + 1 : file_pages),
        report_(report),
        totals_(totals) {}

  /// False: out of memory.
  bool reset() noexcept { return used_.reset(limit_) && free_.reset(limit_); }
  /// Pages of the snapshot that the file has.
  std::uint64_t limit() const noexcept { return limit_; }
  /// Whether `n` pages from `p` are inside the snapshot and the file; told if not.  `from`: the page that
  /// names `p`.
  bool reachable(Tree& tree, std::uint64_t p, std::uint64_t n, std::uint64_t from, const char* what);
  /// Pages that are in use from now on; they are reachable.  False: some were.
  bool use(Tree& tree, std::uint64_t p, std::uint64_t n, std::uint64_t from);
  /// The free list in slot `i` of page `p`: a count, and as many page numbers, the largest first.
  void free_list(Tree& tree, std::uint64_t p, unsigned i, const std::byte* data, std::uint32_t size);
  /// After all trees: counts the pages that are neither used nor free.  `which`: tells which they are.
  void lost(bool which);

 private:
  const std::uint64_t file_pages_, last_pg_, limit_;
  Report& report_;
  Totals& totals_;
  std::uint64_t free_beyond_ = 0;  ///< free pages that the file does not have
  PageSet used_, free_;
};

}  // namespace lmdbio::check
