// The leaf pages of a tree, found through its branch pages, level by level.
#pragma once

#include <cstdint>
#include <vector>

#include "lmdbio/db/planner.h"

namespace lmdbio::db {

/// A pure function of the pages that its source has, in as many calls as that takes.
class LeafLister {
 public:
  enum class Step : unsigned char {
    wait,  ///< for pages that the source does not have yet
    done,
    given_up,  ///< the tree is damaged, or has more pages than it was said to have
  };

  /// Of a tree of `depth` levels, 2 or more.  `most`: pages of a level at most.  May throw bad_alloc.
  void start(std::uint64_t root, unsigned depth, std::uint64_t most);
  /// As far as pages are there.  On `wait` `missing` has the branch pages to bring, those that no earlier
  /// call has named.  May throw bad_alloc.
  Step go_on(PageSource& source, std::vector<std::uint64_t>& missing);
  /// After `done`: the leaf pages, in the order of their keys.
  const std::vector<std::uint64_t>& leaves() const noexcept { return level_; }
  void forget() noexcept;

 private:
  std::vector<std::uint64_t> level_, below_;  ///< pages
  std::size_t read_ = 0;                      ///< of level_, those whose children are in below_
  std::size_t named_ = 0;                     ///< of level_, those that were named as missing, or were there
  unsigned left_ = 0;                         ///< levels of branch pages from level_ on
  std::uint64_t most_ = 0;
};

}  // namespace lmdbio::db
