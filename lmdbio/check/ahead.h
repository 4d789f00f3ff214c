// Brings the pages that a check comes to into the page cache, many at once and before it comes to them: what
// a walk along the tree would otherwise wait for one page fault after the other.  Internal to the check.
//
// It goes through the tree by itself, by levels, and only as far ahead as a wave: some leaf pages that follow
// each other in the tree, and what they name (headers of overflow runs, roots of trees of duplicates and of
// named databases).  One wave is walked, the next one's pages are being read.  All of it is advice: what it
// misses, or gets wrong in a damaged tree, the check reads by page faults.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "lmdbio/base/mapping.h"
#include "lmdbio/cache/window.h"
#include "lmdbio/io/file.h"
#include "lmdbio/io/read_queue.h"
#include "lmdbio/io/residency.h"

namespace lmdbio::check {

/// One thread.
class ReadAhead {
 public:
  /// What is brought of the overflow runs that leaf pages name.
  enum class Runs : unsigned char { none, headers, whole };

  /// `file`: what `view` maps, opened for reads through the page cache; null: nothing is brought.  Both, and
  /// `cancelled` (may be null; ends waits), outlive it.
  ReadAhead(const File* file, const cache::WindowView& view, const std::atomic<bool>* cancelled) noexcept;
  ~ReadAhead();

  bool on() const noexcept { return on_; }
  /// The check begins to walk a tree of `depth` levels, those of the trees before it to be gone on with after
  /// leave().
  void enter(std::uint64_t root, unsigned depth, Runs runs) noexcept;
  void leave() noexcept;
  /// The check comes to a leaf page of the tree entered last.  Blocks until it is there.
  void reach(std::uint64_t leaf) noexcept;

 private:
  struct PageRun {
    std::uint64_t first, pages;
  };
  struct Wave {
    std::vector<std::uint64_t> leaves;  ///< in the order of the tree
    std::size_t next = 0;               ///< the check has come to those before
    bool followed = false;              ///< what the leaf pages name is being read
    std::size_t requests = 0;           ///< for the leaf pages
    ReadGroup leaf_reads, named_reads;
  };
  struct Tree {
    /// Pages of each level that were found and not gone through; the last: leaf pages that are in no wave.
    std::vector<std::deque<std::uint64_t>> levels;
    std::deque<std::unique_ptr<Wave>> waves;  ///< the first is being walked
    std::size_t wave_leaves = 0;              ///< of the next one
    unsigned strangers = 0;                   ///< leaf pages in no wave since the last that was in one
    Runs runs = Runs::none;
  };

  bool open() noexcept;
  void find(Tree& tree, std::size_t level, std::size_t wanted);
  bool add_wave(Tree& tree);
  void drop_first(Tree& tree) noexcept;
  void follow(Tree& tree, Wave& wave);
  void name_pages(const Tree& tree, std::uint64_t leaf, std::vector<PageRun>& out) const;
  std::size_t ask(ReadGroup& group, std::vector<PageRun>& pages);
  bool is_there(const PageRun& run) const noexcept;
  bool wait(ReadGroup& group) noexcept;
  bool cancelled() const noexcept {
    return cancelled_ != nullptr && cancelled_->load(std::memory_order_relaxed);
  }

  const File* const file_;
  const cache::WindowView view_;
  const std::atomic<bool>* const cancelled_;
  bool on_;
  Residency residency_;
  std::deque<Tree> trees_;  ///< the last one was entered last
  Mapping scratch_;         ///< what is read comes to the page cache; nobody looks at it here
  std::unique_ptr<ReadQueue> queue_;
};

}  // namespace lmdbio::check
