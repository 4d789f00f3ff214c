// Read-ahead of a cursor: recognizes walks over data that is not in memory, and prefetches for them.
//
// A walker calls step() only when the walker leaves the run of pages that was granted last.  Within a run
// there is no cost.  While data is in memory, runs are long, and the only cost is a residency probe now and
// then.  A walk that finds data missing becomes a stream.  A stream plans its next needs and waits until its
// current need can be read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lmdbio/ahead/environment_file.h"
#include "lmdbio/ahead/planner.h"
#include "lmdbio/ahead/residency_probe.h"
#include "lmdbio/ahead/stride_walk.h"
#include "lmdbio/ahead/trail.h"
#include "lmdbio/base/status.h"
#include "lmdbio/gather/needed_pages.h"
#include "lmdbio/window/touched.h"
#include "lmdbio/window/walk.h"
#include "lmdbio/window/window.h"

namespace lmdbio::ahead {

/// Prefetches for one cursor.  Follows the cursor's thread rule.
class Readahead {
 public:
  using Step = ahead::Step;

  /// What is known about which values the program uses.
  enum class Uses : bool { unknown, all };

  explicit Readahead(EnvironmentFile& env, Uses uses = Uses::unknown) noexcept;
  ~Readahead();
  Readahead(const Readahead&) = delete;
  Readahead& operator=(const Readahead&) = delete;

  /// Returns false if read-ahead is off.  Then runs are FreeRun::everything(), and step() need not be
  /// called.
  bool is_on() const noexcept { return state_ != State::off; }
  /// Returns whether it prefetches for a walk over data that is not in memory.
  bool is_streaming() const noexcept { return state_ == State::stream; }
  /// Sets the share of the values that the program uses, in 1/1000, if the caller knows it.
  void note_use(std::uint32_t share) noexcept { used_ = share; }
  /// Returns whether a walk has begun and has not been forgotten.
  bool has_walk() const noexcept { return walk_ != nullptr; }
  /// Returns whether `need` is in resident chunks.
  bool is_resident(const PageRun& need, const window::WindowView& view) const noexcept {
    if (walk_ == nullptr) return false;
    const window::WindowFile& file = walk_->file();
    return file.resident_now(file.chunk_at(need.first << view.shift())) &&
           file.resident_now(file.chunk_at((need.first + need.pages - 1) << view.shift()));
  }
  /// Limits the read-ahead to about `bytes` more, after which the walk will end or jump.  0: unknown.
  void limit_bytes(std::uint64_t bytes) noexcept { bytes_left_ = bytes; }
  /// Waits until the walker can read `need`.  `place` is the position of `need`; its `leaf` is none for
  /// Step::leaf and Step::edge.  Sets `run` to the pages that the walker may enter, `need` included.  Sets
  /// `leaves` if the walker must call again at each leaf page, also inside the run.  Returns an errno if
  /// `need` cannot be read now; `run` is empty then, and the next call tries again.  Not a cancellation
  /// point; preserves errno.
  Status step(Step kind, WalkPlace place, const PageRun& need, const window::WindowView& view, FreeRun& run,
              bool& leaves) noexcept;
  /// Returns the run that a walker may enter without step() after a jump to `need`.  The run covers a few
  /// records, because the program may not walk on from there.
  static FreeRun after_jump(const PageRun& need) noexcept {
    constexpr std::uint64_t kValues = 16, kPages = 8;
    const std::uint64_t around = need.pages * kValues + kPages;
    return {need.first > around ? need.first - around : 0, 2 * around};
  }
  /// Forgets the walk and its plan.  Required when the window has changed, because the plan is for the old
  /// window.
  void forget() noexcept;

 private:
  enum class State : unsigned char {
    off,       ///< page faults read the data
    watching,  ///< data was in memory so far
    stream,    ///< data was missing: prefetches for the walk
    keys,      ///< data was missing, but the program does not read the values
    picking,   ///< data was missing; finds out which values the program reads
  };

  class Facts;

  Status step_now(Step kind, WalkPlace place, const PageRun& need, const window::WindowView& view,
                  FreeRun& run, bool& leaves);
  Status read_exactly(const PageRun& need, const window::WindowView& view) noexcept;
  Status read_need(const PageRun& need, const window::WindowView& view) noexcept;
  void start_over(bool forward, const PageRun& need) noexcept;
  bool is_planned(window::ChunkIndex chunk) const noexcept;
  bool comes_back_to(window::ChunkIndex chunk) const noexcept;
  bool start_stream(Step kind, const WalkPlace& place, const PageRun& need, const window::WindowView& view);
  bool pick(const WalkPlace& place, const window::WindowView& view);
  Status go_on(Step kind, WalkPlace place, const PageRun& need, const window::WindowView& view,
               std::int64_t now, FreeRun& run);
  Status go_on_by_keys(const WalkPlace& place, const PageRun& need, const window::WindowView& view);
  bool reads_values(std::int64_t now, std::uint64_t given) noexcept;
  bool leaves_values(Step kind, std::int64_t now, const WalkPlace& place) noexcept;
  void sample(const FreeRun& chunk, const window::WindowView& view) noexcept;

  EnvironmentFile* env_;
  ResidencyProbe probe_;  ///< of State::watching
  const Uses uses_;
  State state_ = State::watching;
  std::unique_ptr<window::Walk> walk_;
  gather::NeededPages needs_;
  std::shared_ptr<window::WindowFile>
      hinted_file_;  ///< file whose kernel read-ahead is enabled, because this object is off; or null
  std::unique_ptr<StrideWalk> picking_;  ///< of State::picking
  unsigned asked_ = 0;                   ///< steps of picking_
  static constexpr std::uint32_t kAllUsed = 1000;
  std::uint32_t used_ = kAllUsed;  ///< share of values that are used, in 1/1000
  // The members below are used in State::stream.
  std::size_t horizon_ = 0;       ///< chunks
  std::uint64_t bytes_left_ = 0;  ///< see limit_bytes()
  WalkHistory history_;
  Trail trail_;
  std::uint64_t passed_ = 0;          ///< bytes of needs since forget_extents()
  unsigned fresh_ = 0;                ///< chunks in a row that the walk has reached for the first time
  std::int64_t left_ns_ = 0;          ///< when the last step returned; 0: not known
  std::uint64_t given_before_ = 0;    ///< WalkPlace::given_bytes at that time
  unsigned unread_ = 0, cached_ = 0;  ///< steps in a row: with values not read; with all data cached
  bool reads_late_ = false;           ///< the program reads values only after the walk has left them
  std::optional<window::TouchedPages> touched_;
  unsigned chunks_given_ = 0;  ///< number of chunks granted while all values seem to be read
  /// Pages of the chunk that was granted last.  None of them was touched at that time.  May be empty.
  std::vector<const std::byte*> samples_;
  unsigned replan_in_ = 0;  ///< steps of a sparse walk until the next plan
  /// After a failed read: how many needs are still to be read one by one, and how many there were at first.
  unsigned alone_ = 0, alone_next_ = 0;
  Plan plan_;
  FoldedPlan folded_;
  std::vector<window::ChunkIndex> chunks_;
  std::vector<Extent> extents_;
};

}  // namespace lmdbio::ahead
