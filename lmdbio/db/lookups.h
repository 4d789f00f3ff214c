// Lookups by key of data that is not in memory.
//
// A lookup that misses memory costs a page fault for its leaf page and one or more for its value, each of
// which waits for the kernel's read-around.  Here a lookup that asks is walked ahead of the real one: what it
// will touch and is not in memory is read exactly, a value in one request.  Which lookups ask: all of them
// while data is missing, one in many where it is in memory.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "lmdbio/cache/need_reads.h"
#include "lmdbio/cache/walk.h"
#include "lmdbio/cache/window.h"
#include "lmdbio/db/compare.h"
#include "lmdbio/db/leaf_lister.h"
#include "lmdbio/db/lookup_walk.h"
#include "lmdbio/db/planner.h"
#include "lmdbio/format/layout.h"
#include "lmdbio/io/residency.h"

namespace lmdbio::db {

class Env;

/// How many lookups there are from one that asks to the next.
class LookupSensor {
 public:
  /// Of lookups that ask, in memory: at most so many others between two of them.
  static constexpr unsigned kMost = 1024;
  /// So many in a row that missed nothing, and data counts as in memory again.
  static constexpr unsigned kInARow = 32;
  /// At an edge so many more lookups ask: enough to recognize a walk.
  static constexpr unsigned kAtEdge = LookupSequence::kWalk + 1;

  /// One asked.  How many lookups later the next one is to ask, 1 or more.  `edge`: what it needed is in
  /// memory, what lies further on is not.
  unsigned asked(bool missed, bool edge = false) noexcept {
    if (missed) {
      cold_ = true;
      in_a_row_ = at_edge_ = 0;
      return interval_ = 1;
    }
    if (cold_) {
      if (++in_a_row_ < kInARow) return 1;
      cold_ = false;
    }
    if (at_edge_ != 0 && --at_edge_ != 0) return 1;
    interval_ = interval_ < kMost ? 2 * interval_ : kMost;
    if (!edge) return interval_;
    at_edge_ = kAtEdge;
    return 1;
  }
  /// Data was missing lately: each lookup asks.
  bool cold() const noexcept { return cold_; }
  /// The next one that asks should find out whether it is at an edge.  Not after each edge at once: data that
  /// is used often may be scattered over a file of which little is in memory.
  bool wants_edge() const noexcept { return !cold_ && at_edge_ == 0; }

 private:
  bool cold_ = false;
  unsigned in_a_row_ = 0, interval_ = 1, at_edge_ = 0;
};

/// Lookups that go through the file in order are served better by the kernel, which reads around what is
/// missing.  `gap`: bytes that it reads.
class LookupOrder {
 public:
  /// The place of this lookup is near the last one's.  Remembers it.
  bool near(std::uint64_t at, std::uint64_t bytes, std::uint64_t gap) noexcept {
    const bool is = end_ != 0 && at + bytes + gap >= at_ && at <= end_ + gap;
    at_ = at;
    end_ = at + bytes;
    return is;
  }

 private:
  std::uint64_t at_ = 0, end_ = 0;  ///< of the last lookup
};

/// One transaction handle's; its threads are the transaction's.
class Lookups {
 public:
  explicit Lookups(Env& env) noexcept : env_(&env), walk_(env) {}
  ~Lookups();
  Lookups(const Lookups&) = delete;
  Lookups& operator=(const Lookups&) = delete;

  /// The snapshot that is read.
  struct Source {
    const cache::WindowView& view;
    std::uint64_t txnid;
    std::uint32_t window;       ///< number
    std::uint64_t given_bytes;  ///< sizes of all values that the transaction has given out so far
  };
  struct Lookup {
    const format::DbRecord& db;
    const Comparator& order;  ///< of its keys; not a program's own
    const MDB_val& key;
    bool or_next;  ///< the next record does where there is none of that key
  };
  /// `lookup` is about to be made.  What it will touch is in
  /// memory afterwards, unless the page faults of the lookup itself do as well.  How many lookups later to
  /// call this again; kNever: not in this environment.  Finds no fault with damaged pages: the lookup will.
  /// No cancellation point; leaves the variable errno alone.
  std::uint32_t before(const Source& source, const Lookup& lookup) noexcept;
  static constexpr std::uint32_t kNever = ~std::uint32_t{0};

 private:
  class Pages;

  bool prepare(const Source& source, const Lookup& lookup);
  bool is_worth_walking(const WalkPlace& way, std::uint64_t leaf,
                        const cache::WindowView& view) const noexcept;
  bool there(const cache::WindowView& view, std::uint64_t at, std::uint64_t bytes) noexcept;
  bool is_edge(const cache::WindowView& view, std::uint64_t at) noexcept;
  Extent around(std::uint64_t at, std::uint64_t bytes, std::uint64_t file_bytes) const noexcept;
  bool bring(const cache::WindowView& view, std::uint64_t at, std::uint64_t bytes);
  bool open_file(const cache::WindowView& view) noexcept;
  void forget() noexcept;
  void fetch_leaves(const Source& source, const format::DbRecord& db, std::uint64_t misses);
  void go_on_listing(const cache::WindowView& view);

  Env* env_;
  LookupSensor sensor_;
  LookupWalk walk_;
  unsigned covered_ = 0;  ///< lookups after this one that need not ask, if they go on as a walk
  unsigned within_ = 0;   ///< the next one asks after so many lookups at most; 0: no such limit
  bool edge_ = false;     ///< this one is at an edge (LookupSensor)
  LookupOrder leaves_, values_;
  bool around_ = false;                     ///< the file is far away, is looked up all over and is not loaded
  bool off_ = false;                        ///< nothing can be done for this environment's lookups
  std::uint32_t window_ = 0;                ///< number of the window that all below belongs to
  std::shared_ptr<cache::FileCache> file_;  ///< null: no lookup has missed anything yet
  cache::NeedReads needs_;                  ///< of that file
  /// Branch pages that were there, by low bits of their numbers; 0: none.
  std::array<std::uint64_t, 64> known_{};
  // Leaf pages, all at once.
  LeafLister lister_;
  std::uint64_t listing_ = 0;  ///< the snapshot being listed; 0: none
  unsigned waits_ = 0;
  std::unique_ptr<cache::Walk> leaf_walk_, value_walk_;
  std::vector<std::uint64_t> missing_;
  std::vector<Extent> extents_;
};

}  // namespace lmdbio::db
