// Lists the leaf pages of a tree by reading its branch pages level by level.
#pragma once

#include <cstdint>
#include <vector>

#include "lmdbio/ahead/planner.h"

namespace lmdbio::ahead {

/// Lists the leaf pages of one tree.  It takes several calls if the source must first get branch pages.  Does
/// no I/O: the result depends only on the pages in the source.
class LeafLister {
 public:
  enum class Step : unsigned char {
    wait,  ///< for pages that the source does not have yet
    done,
    given_up,  ///< the tree is damaged, or one level has more pages than start() allows
  };

  /// Starts a list for a tree of `depth` levels, 2 or more.  `most`: upper limit on the pages of one level.
  /// May throw bad_alloc.
  void start(std::uint64_t root, unsigned depth, std::uint64_t most);
  /// Continues as far as the source has the pages.  On `wait`, `missing` holds the branch pages to read,
  /// except those that an earlier call has named.  May throw bad_alloc.
  Step go_on(PageSource& source, std::vector<std::uint64_t>& missing);
  /// Returns the leaf pages in the order of their keys.  Valid after `done`.
  const std::vector<std::uint64_t>& leaves() const noexcept { return level_; }
  void forget() noexcept;

 private:
  std::vector<std::uint64_t> level_, below_;  ///< page numbers
  std::size_t read_ = 0;                      ///< pages of level_ whose children are in below_
  std::size_t named_ = 0;                     ///< pages of level_ that were named as missing, or were there
  unsigned left_ = 0;                         ///< levels of branch pages from level_ on
  std::uint64_t most_ = 0;
};

}  // namespace lmdbio::ahead
