// Provenance: where records must be if the database was written in the order of its keys, with values of one
// size.  A guess, learnt from the first leaf pages; the index tells later whether it was right.
//
// Stock LMDB, writing in order, fills a leaf page to the same number of records each time, and takes the runs
// of large values from the end of the file one after the other; a leaf page splits at the same record of
// each, and a commit shifts what is around it (PROV in Pumma et al., TOPC 2019).  So from a leaf's page
// number, which branch pages tell exactly, follows where its values are, but for leaves near a commit and at
// the start of a branch page: of those nothing is guessed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lmdbio/reader/record_index.h"

namespace lmdbio::reader {

/// A leaf page that was read: what its entries say, in order.
struct LeafSample {
  struct Value {
    std::uint64_t overflow = 0;  ///< first page of its run; 0: in the leaf
    std::uint64_t pages = 0;     ///< of the run
    bool plain = true;           ///< one record: no duplicates, no database
  };
  std::uint64_t page = 0;
  std::vector<Value> values;
};

/// Not thread-safe.
class Provenance {
 public:
  struct Counters {
    std::uint64_t guessed = 0, right = 0, wrong = 0;  ///< wrong is 0 or 1: the first one ends it
  };
  struct Guess {
    std::uint64_t leaf = 0;
    std::uint32_t slot = 0;
    std::uint64_t overflow = 0;  ///< first page of the value's run; 0: the value is in the leaf
    std::uint64_t pages = 0;     ///< of the run
    friend bool operator==(const Guess&, const Guess&) = default;
  };
  /// Samples that are enough to see two commits of a thousand records of any size that has overflow pages.
  static constexpr std::size_t kSamples = 32;

  /// `leaves`: page numbers of all leaves in order; `branches`: those of them, by index from 0, that are the
  /// first below their branch pages, ascending.  `first`: what the first leaves hold, at least three.  Empty:
  /// no rule is seen.  May throw bad_alloc.
  static std::optional<Provenance> learn(std::vector<std::uint64_t> leaves,
                                         std::vector<std::uint64_t> branches,
                                         std::span<const LeafSample> first, std::uint64_t records);

  /// Where record `ordinal` must be; empty: not known.  Pages may lie beyond the file.  Counted.
  std::optional<Guess> guess(std::uint64_t ordinal) noexcept;
  /// What became of a guess: `actual` is the index's.  False: it was wrong, and nothing is guessed any more.
  bool check(const Guess& guessed, const RecordPlace& actual, unsigned page_shift) noexcept;
  const Counters& counters() const noexcept { return counters_; }
  /// Records between two commits; 0: none was seen.
  std::uint64_t commit_interval() const noexcept { return commit_; }
  std::uint64_t records_per_leaf() const noexcept { return per_leaf_; }

 private:
  Provenance() = default;
  bool learn_runs(std::span<const LeafSample> first);
  bool begins_branch(std::uint64_t leaf) const noexcept;
  bool near_commit(std::uint64_t leaf) const noexcept;

  std::vector<std::uint64_t> leaves_, branches_;
  std::uint64_t records_ = 0, per_leaf_ = 0, commit_ = 0;
  std::uint64_t run_pages_ = 0;         ///< of a value; 0: values are in the leaves
  std::vector<std::uint64_t> offsets_;  ///< of a leaf's values, in pages, from the leaf page, modulo 2^64
  bool dropped_ = false;
  Counters counters_;
};

}  // namespace lmdbio::reader
