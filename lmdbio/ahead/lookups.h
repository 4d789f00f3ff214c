// Prefetches for lookups by key whose data is not in memory.
//
// A lookup that misses memory costs a page fault for its leaf page and one or more for its value.  Each page
// fault waits for the kernel's read-around.  A probe goes along the path of a lookup before the lookup itself
// does.  It reads exactly the pages on that path that are not in memory, a value in one request.  While data
// is missing, there is a probe before each lookup.  While data is in memory, there is a probe before one
// lookup in many.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "lmdbio/ahead/environment_file.h"
#include "lmdbio/ahead/leaf_lister.h"
#include "lmdbio/ahead/lookup_walk.h"
#include "lmdbio/ahead/planner.h"
#include "lmdbio/format/compare.h"
#include "lmdbio/format/layout.h"
#include "lmdbio/gather/needed_pages.h"
#include "lmdbio/io/residency.h"
#include "lmdbio/window/walk.h"
#include "lmdbio/window/window.h"

namespace lmdbio::ahead {

/// Decides how many lookups there are from one probe to the next.
class LookupSensor {
 public:
  /// Upper limit on the lookups from one probe to the next while data is in memory.
  static constexpr unsigned kMost = 1024;
  /// Number of probes in a row without a miss after which data counts as in memory again.
  static constexpr unsigned kInARow = 32;
  /// Number of lookups in a row that probe at an edge; enough to recognize a walk.
  static constexpr unsigned kAtEdge = LookupSequence::kWalk + 1;

  /// Records a probe and returns after how many lookups the next probe is due, 1 or more.  `edge`: the
  /// lookup's data is in memory, but the data further on is not.
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
  /// Returns whether data was missing recently, so that each lookup probes.
  bool cold() const noexcept { return cold_; }
  /// Returns whether the next probe is to test for an edge.  Returns false during the probes that follow an
  /// edge.  Otherwise lookups of frequently used data would find edges again and again in a file that is
  /// mostly not in memory.
  bool wants_edge() const noexcept { return !cold_ && at_edge_ == 0; }

 private:
  bool cold_ = false;
  unsigned in_a_row_ = 0, interval_ = 1, at_edge_ = 0;
};

/// Detects lookups that go through the file in order.  The kernel serves such lookups better, because it
/// reads around a missing page.  `gap`: size of that read-around in bytes.
class LookupOrder {
 public:
  /// Returns whether [at, at + bytes) is near the previous lookup's range, and remembers it.
  bool near(std::uint64_t at, std::uint64_t bytes, std::uint64_t gap) noexcept {
    const bool is = end_ != 0 && at + bytes + gap >= at_ && at <= end_ + gap;
    at_ = at;
    end_ = at + bytes;
    return is;
  }

 private:
  std::uint64_t at_ = 0, end_ = 0;  ///< range of the last lookup, byte offsets
};

/// Prefetches for the lookups of one transaction handle.  Follows the transaction's thread rule.
class Lookups {
 public:
  explicit Lookups(EnvironmentFile& env) noexcept : env_(&env), walk_(env) {}
  ~Lookups();
  Lookups(const Lookups&) = delete;
  Lookups& operator=(const Lookups&) = delete;

  /// The snapshot that lookups read.
  struct Source {
    const window::WindowView& view;
    std::uint64_t txnid;
    std::uint32_t window;       ///< number of the window
    std::uint64_t given_bytes;  ///< total size of the values that the transaction has returned so far
  };
  struct Lookup {
    const format::DbRecord& db;
    const format::Comparator& order;  ///< order of the keys; never a program's own function
    const MDB_val& key;
    bool or_next;  ///< the next record is returned if the key does not exist
  };
  /// Call before making `lookup`.  Afterwards, all data that the lookup needs is in memory, except where page
  /// faults are as good.  Returns after how many lookups to call this again; kNever: no more in this
  /// environment.  Does not report damaged pages: the lookup does.  Not a cancellation point; preserves
  /// errno.
  std::uint32_t before(const Source& source, const Lookup& lookup) noexcept;
  static constexpr std::uint32_t kNever = ~std::uint32_t{0};

 private:
  class Pages;

  bool prepare(const Source& source, const Lookup& lookup);
  bool is_worth_walking(const WalkPlace& way, std::uint64_t leaf,
                        const window::WindowView& view) const noexcept;
  bool there(const window::WindowView& view, std::uint64_t at, std::uint64_t bytes) noexcept;
  bool is_edge(const window::WindowView& view, std::uint64_t at) noexcept;
  Extent around(std::uint64_t at, std::uint64_t bytes, std::uint64_t file_bytes) const noexcept;
  bool bring(const window::WindowView& view, std::uint64_t at, std::uint64_t bytes);
  bool take_chunks(const Extent& extent, std::uint64_t used_bytes);
  Status read_exactly(std::uint64_t at, std::uint64_t bytes) noexcept;
  bool open_file(const window::WindowView& view) noexcept;
  void forget() noexcept;
  void fetch_leaves(const Source& source, const format::DbRecord& db, std::uint64_t misses);
  void go_on_listing(const window::WindowView& view);

  EnvironmentFile* env_;
  LookupSensor sensor_;
  LookupWalk walk_;
  unsigned covered_ = 0;  ///< number of lookups after this one that need no probe if the walk continues
  unsigned within_ = 0;   ///< upper limit on the lookups until the next probe; 0: no limit
  bool edge_ = false;     ///< this lookup is at an edge (LookupSensor)
  LookupOrder leaves_, values_;
  /// Whether to read around values.  True if the file is remote, lookups go all over it, and it is not being
  /// loaded.
  bool around_ = false;
  bool off_ = false;                          ///< lookups of this environment cannot be prefetched
  std::uint32_t window_ = 0;                  ///< number of the window that the members below belong to
  std::shared_ptr<window::WindowFile> file_;  ///< null: no lookup has missed anything yet
  gather::NeededPages needs_;                 ///< reads of that file
  /// Branch pages that were found in memory, by the low bits of their page numbers; 0: none.
  std::array<std::uint64_t, 64> known_{};
  // The fetch of all leaf pages.
  LeafLister lister_;
  std::uint64_t listing_ = 0;  ///< snapshot whose leaf pages are being listed; 0: none
  unsigned waits_ = 0;
  std::unique_ptr<window::Walk> leaf_walk_, value_walk_;
  std::vector<std::uint64_t> missing_;
  std::vector<Extent> extents_;
  std::vector<window::ChunkIndex> chunks_;
  Extent taken_;  ///< chunks that take_chunks() has brought for this lookup; 0 bytes: none
};

}  // namespace lmdbio::ahead
