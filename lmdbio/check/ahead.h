// Reads the pages that a check needs into the page cache, many at once, before the check comes to them.
// Internal to the check.
//
// Without ReadAhead, the check would wait for one page fault after the other.  ReadAhead goes through the
// tree by itself, level by level, and only a few waves ahead.  A wave consists of leaf pages that follow each
// other in the tree, and of the pages that these leaf pages name: headers of overflow runs, roots of trees of
// duplicates, and roots of named databases.  While the check walks one wave, the pages of the next one are
// being read.  The check does not depend on ReadAhead.  If it misses pages, or reads wrong ones in a damaged
// tree, page faults read the pages that the check needs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "lmdbio/gather/page_batch.h"
#include "lmdbio/io/file.h"
#include "lmdbio/window/window.h"

namespace lmdbio::check {

/// Prefetches for one check.  One thread.
class ReadAhead {
 public:
  /// The parts to read of the overflow runs that leaf pages name.
  enum class Runs : unsigned char { none, headers, whole };

  /// `file`: the file that `view` maps, opened for reads through the page cache; null: nothing is read.
  /// `cancelled` ends waits once it is set; may be null.  `file`, the mapping of `view`, and `cancelled`
  /// outlive this object.
  ReadAhead(const File* file, const window::WindowView& view, const std::atomic<bool>* cancelled) noexcept
      : view_(view), batches_(file, view.base(), view.pages(), view.page_size(), cancelled) {}

  bool on() const noexcept { return batches_.on(); }
  /// Called when the check begins to walk a tree of `depth` levels.  After leave(), the walk of the previous
  /// tree continues.
  void enter(std::uint64_t root, unsigned depth, Runs runs) noexcept;
  void leave() noexcept;
  /// Called when the check comes to a leaf page of the tree entered last.  Blocks until the page is in
  /// memory.
  void reach(std::uint64_t leaf) noexcept;

 private:
  using PageRun = gather::PageRun;
  struct Wave {
    std::vector<std::uint64_t> leaves;  ///< in the order of the tree
    std::size_t next = 0;               ///< the check has come to all leaf pages before this index
    bool followed = false;              ///< the pages that the leaf pages name are being read
    std::size_t requests = 0;           ///< number of requests for the leaf pages
    ReadGroup leaf_reads, named_reads;
  };
  struct Tree {
    /// For each level, the pages that were found but whose children were not.  For the last level, the leaf
    /// pages that are in no wave.
    std::vector<std::deque<std::uint64_t>> levels;
    std::deque<std::unique_ptr<Wave>> waves;  ///< the check walks the first wave
    std::size_t wave_leaves = 0;              ///< leaf pages of the next wave
    unsigned strangers = 0;                   ///< leaf pages in a row that were in no wave
    Runs runs = Runs::none;
  };

  void find(Tree& tree, std::size_t level, std::size_t wanted);
  bool add_wave(Tree& tree);
  void drop_first(Tree& tree) noexcept;
  void follow(Tree& tree, Wave& wave);
  void name_pages(const Tree& tree, std::uint64_t leaf, std::vector<PageRun>& out) const;

  const window::WindowView view_;
  std::deque<Tree> trees_;  ///< the last one was entered last
  gather::PageBatches batches_;
};

}  // namespace lmdbio::check
