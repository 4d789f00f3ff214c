// A cursor's read-ahead: tells walks over data that is not in memory from others, and reads ahead of them.
//
// A walker calls it only when it leaves the run of pages that it was last granted: within a run it goes
// as fast as memory.  Where data is in memory runs are long and cost a look now and then; a walk that finds
// data missing becomes a stream: it plans what comes next and waits until what it needs now is there.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lmdbio/base/status.h"
#include "lmdbio/cache/need_reads.h"
#include "lmdbio/cache/touched.h"
#include "lmdbio/cache/walk.h"
#include "lmdbio/cache/window.h"
#include "lmdbio/db/planner.h"
#include "lmdbio/db/stride_walk.h"
#include "lmdbio/db/trail.h"

namespace lmdbio::db {

class Env;

/// One cursor's; its threads are the cursor's.
class Readahead {
 public:
  /// What the walker comes to.
  enum class Step : unsigned char {
    edge,   ///< a leaf, by MDB_FIRST or MDB_LAST
    leaf,   ///< the next leaf
    value,  ///< a value in overflow pages
  };

  /// Of the values that it is given, what the program uses.
  enum class Uses : bool { unknown, all };

  explicit Readahead(Env& env, Uses uses = Uses::unknown) noexcept;
  ~Readahead();
  Readahead(const Readahead&) = delete;
  Readahead& operator=(const Readahead&) = delete;

  /// False: runs are FreeRun::everything(), and step() need not be called.
  bool is_on() const noexcept { return state_ != State::off; }
  /// It reads ahead of a walk over data that is not in memory.
  bool is_streaming() const noexcept { return state_ == State::stream; }
  /// How much of the values the program uses, in 1/1000, where the caller knows.
  void note_use(std::uint32_t share) noexcept { used_ = share; }
  /// A walk has begun and has not been forgotten.
  bool has_walk() const noexcept { return walk_ != nullptr; }
  /// The walk will end, or jump, after about so many bytes more; 0: nobody knows.
  void limit_bytes(std::uint64_t bytes) noexcept { bytes_left_ = bytes; }
  /// The walker is about to read `need`; `place` is where that is, its `leaf` none for Step::leaf and edge.
  /// Sets the run that it may go on in, which includes `need` on success.  `leaves` asks for a call at each
  /// leaf even so.  An errno: `need` cannot be read now; nothing has changed, and the next call tries again.
  /// No cancellation point; leaves the variable errno alone.
  Status step(Step kind, WalkPlace place, const PageRun& need, const cache::WindowView& view, FreeRun& run,
              bool& leaves) noexcept;
  /// A lookup jumped to a place with `need` in it: what may be read from there before it is called a walk.
  static FreeRun after_jump(const PageRun& need) noexcept {
    constexpr std::uint64_t kValues = 16, kPages = 8;
    const std::uint64_t around = need.pages * kValues + kPages;
    return {need.first > around ? need.first - around : 0, 2 * around};
  }
  /// The window has changed: what was planned is of the old one.
  void forget() noexcept;

 private:
  enum class State : unsigned char {
    off,       ///< the mapping does it
    watching,  ///< data was in memory so far
    stream,    ///< it was not
    keys,      ///< likewise, but the program does not read the values
    picking,   ///< likewise, and it is being found out which of them the program reads
  };

  class Facts;

  Status step_now(Step kind, WalkPlace place, const PageRun& need, const cache::WindowView& view,
                  FreeRun& run, bool& leaves);
  bool in_memory(const PageRun& need, bool forward, std::int64_t now, const cache::WindowView& view) noexcept;
  FreeRun around(const PageRun& need) const noexcept;
  bool read_at_once(std::uint64_t offset, const cache::WindowView& view) const noexcept;
  Status read_exactly(const PageRun& need, const cache::WindowView& view) noexcept;
  Status read_need(const PageRun& need, const cache::WindowView& view) noexcept;
  void start_over(bool forward, const PageRun& need) noexcept;
  bool is_planned(cache::ChunkIndex chunk) const noexcept;
  bool comes_back_to(cache::ChunkIndex chunk) const noexcept;
  bool start_stream(Step kind, const WalkPlace& place, const PageRun& need, const cache::WindowView& view);
  bool pick(const WalkPlace& place, const cache::WindowView& view);
  Status go_on(Step kind, WalkPlace place, const PageRun& need, const cache::WindowView& view,
               std::int64_t now, FreeRun& run);
  Status go_on_by_keys(const WalkPlace& place, const PageRun& need, const cache::WindowView& view);
  bool reads_values(std::int64_t now, std::uint64_t given) noexcept;
  bool leaves_values(Step kind, std::int64_t now, const WalkPlace& place) noexcept;
  void sample(const FreeRun& chunk, const cache::WindowView& view) noexcept;

  Env* env_;
  const Uses uses_;
  State state_ = State::watching;
  std::unique_ptr<cache::Walk> walk_;
  cache::NeedReads needs_;
  std::shared_ptr<cache::FileCache> hinted_file_;  ///< off, but for what the kernel was asked to do; or null
  // watching
  std::int64_t looked_ns_ = 0;
  std::uint64_t wide_ = 0;               ///< pages granted around a place that was in memory
  std::unique_ptr<StrideWalk> picking_;  ///< of State::picking
  unsigned asked_ = 0;                   ///< steps of it
  static constexpr std::uint32_t kAllUsed = 1000;
  std::uint32_t used_ = kAllUsed;  ///< of the values, in 1/1000
  // stream
  std::size_t horizon_ = 0;       ///< chunks
  std::uint64_t bytes_left_ = 0;  ///< see limit_bytes()
  WalkHistory history_;
  Trail trail_;
  std::uint64_t passed_ = 0;          ///< bytes of needs since extents were last to be looked for anew
  unsigned fresh_ = 0;                ///< chunks in a row to which it came for the first time
  std::int64_t left_ns_ = 0;          ///< when the walker was let go last
  std::uint64_t given_before_ = 0;    ///< bytes of values, then
  unsigned unread_ = 0, cached_ = 0;  ///< steps in a row: values were not read; all in the page cache
  bool reads_late_ = false;           ///< whether values are read shows only after the walk has left them
  std::optional<cache::TouchedPages> touched_;
  /// Pages of the chunk that was granted last, none of them touched then; or none at all.
  unsigned chunks_given_ = 0;  ///< while all values seem to be read
  std::vector<const std::byte*> samples_;
  unsigned replan_in_ = 0;               ///< steps of a sparse walk until the next plan
  unsigned alone_ = 0, alone_next_ = 0;  ///< after a failed read: needs to be read by themselves; at the next
  Plan plan_;
  FoldedPlan folded_;
  std::vector<cache::ChunkIndex> chunks_;
  std::vector<Extent> extents_;
};

}  // namespace lmdbio::db
