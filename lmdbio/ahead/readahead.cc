#include "lmdbio/ahead/readahead.h"

#include <algorithm>
#include <cerrno>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/uncancelled.h"
#include "lmdbio/window/prefetcher.h"

namespace lmdbio::ahead {

using window::Prefetcher;

namespace {

/// Number of steps from one probe to the next, for a walk whose values may be unused.
constexpr unsigned kAskedAgain = 64;
/// After a walk has needed this many bytes, its earlier extents may have left the page cache.
constexpr std::uint64_t kPassed = std::uint64_t{64} << 20;
/// Initial number of chunks ahead: at the edge of a tree on remote storage, and elsewhere.
constexpr std::size_t kFirstHorizon = 8, kJumpHorizon = 2;
/// Upper limit on the needs in a row that are read one by one after a failed prefetch.
constexpr unsigned kMostAlone = 64;

}  // namespace

Readahead::Readahead(EnvironmentFile& env, Uses uses) noexcept : env_(&env), probe_(env), uses_(uses) {
  if (!env.reads_ahead()) state_ = State::off;
}

Readahead::~Readahead() { forget(); }

void Readahead::forget() noexcept {
  const AsyncSignalsBlocked fork_safe(has_own_threads());
  picking_.reset();
  needs_.forget();
  if (walk_ != nullptr) {
    Prefetcher::existing()->remove(*walk_);
    walk_.reset();
  }
  if (hinted_file_ != nullptr) {
    Prefetcher::existing()->use_readahead(*hinted_file_, false);
    hinted_file_.reset();
    state_ = State::watching;
  }
  if (state_ != State::off) state_ = State::watching;
  probe_.forget();
}

Status Readahead::step(Step kind, WalkPlace place, const PageRun& need, const window::WindowView& view,
                       FreeRun& run, bool& leaves) noexcept {
  leaves = false;
  run = FreeRun::everything();
  if (state_ == State::off) return {};
  const int saved = errno;
  const Uncancelled wait;
  const AsyncSignalsBlocked fork_safe;
  Status st;
  bool alone = alone_ != 0 && state_ == State::stream;
  if (alone) {
    --alone_;
  } else {
    try {
      st = step_now(kind, place, need, view, run, leaves);
    } catch (...) {  // out of memory: page faults read the data
      run = FreeRun::everything();
    }
    // An unmapped file has no page cache to read into.
    alone = !st.ok() && walk_ != nullptr && walk_->file().has_page_cache();
    alone_next_ = alone ? std::min(2 * alone_next_ + 1, kMostAlone) : 0;
    alone_ = alone_next_;
  }
  // The failed read was larger than `need`, or began before `need` was needed.  Storage may have failed
  // outside of `need`, or may have recovered.  Some file systems also report a file's growth before they
  // allow reads of it.
  if (alone) {
    st = read_need(need, view);
    run = {need.first, need.pages};
  }
  if (!st.ok()) run = {};  // the next call tries again
  errno = saved;
  return st;
}

// Reads `need` into the page cache and waits.  Without this, a failed page fault would raise a signal.  Pages
// in the page cache may lack their bytes, because the kernel does not remember that its read-ahead failed.
Status Readahead::read_need(const PageRun& need, const window::WindowView& view) noexcept {
  window::WindowFile& file = walk_->file();
  Status st;
  if (!file.has_page_cache()) return st;
  const std::uint64_t at = need.first << view.shift(), bytes = need.pages << view.shift();
  if (!file.residency().is_read(at, bytes, view.base())) st = env_->bring(needs_, file, at, bytes);
  if (st.raw() == EBADF) st = {};  // nothing was read: page faults read it
  if (!st.ok()) file.read_failed.store(true, std::memory_order_relaxed);
  return st;
}

Status Readahead::step_now(Step kind, WalkPlace place, const PageRun& need, const window::WindowView& view,
                           FreeRun& run, bool& leaves) {
  const std::int64_t now = now_ns();
  if (state_ == State::watching) {
    if (probe_.in_memory(need, place.forward, now, view)) {
      run = probe_.around(need);
      return {};
    }
    if (!start_stream(kind, place, need, view)) {
      state_ = State::off;
      return {};
    }
    if (state_ != State::picking) (void)pick(place, view);
  } else if (kind == Step::edge && state_ == State::stream && ValueUse::tells_each(place, view)) {
    (void)pick(place, view);  // the new turn may use other values
  }
  passed_ += need.pages << view.shift();
  if (trail_.turns_at(place, kind == Step::edge) && passed_ >= kPassed) {
    passed_ = 0;
    Prefetcher::existing()->forget_extents(*walk_);
  }
  if (kind == Step::edge) start_over(place.forward, need);
  if (state_ == State::picking) {
    // If data is in memory, the use of values does not matter, and the walk goes on without further calls.
    if (!ValueUse::tells_each(place, view) && ++asked_ % kAskedAgain == 0 &&
        probe_.in_memory(need, place.forward, now, view)) {
      const ResidencyProbe kept = probe_;
      forget();
      probe_ = kept;
      run = probe_.around(need);
      return {};
    }
    leaves = true;
    const Result<bool> goes_on = picking_->step(kind, place, need, view, run);
    if (!goes_on) return goes_on.error();
    if (goes_on.value()) return {};
    used_ = picking_->share();
    reads_late_ = reads_late_ || picking_->reads_late();
    picking_.reset();
    leaves = false;
    if (walk_->file().path() == ReadPath::page_faults) {
      forget();
      state_ = State::off;
      return {};
    }
    state_ = State::stream;
    if (!walk_->file().local) horizon_ = kFirstHorizon;
    left_ns_ = 0;
    unread_ = cached_ = replan_in_ = 0;
  }
  if (state_ == State::keys) {
    if (!reads_values(now, place.given_bytes)) {
      leaves = true;
      return go_on_by_keys(place, need, view);
    }
    state_ = State::stream;
  }
  const Status st = go_on(kind, place, need, view, now, run);
  leaves = state_ == State::keys || state_ == State::picking;
  return st;
}

// Records that the walk starts, or starts over, by MDB_FIRST or MDB_LAST.
void Readahead::start_over(bool forward, const PageRun& need) noexcept {
  if (need.first != history_.first_page) {
    history_.epochs = 0;
  } else if (++history_.epochs == 1) {
    walk_->file().comes_around.store(true, std::memory_order_relaxed);
  }
  history_.first_page = need.first;
  history_.end_page = forward ? need.first : need.first + need.pages;
}

// Starts to find out which values are read.  Returns false if that is not possible.
bool Readahead::pick(const WalkPlace& place, const window::WindowView& view) {
  if (uses_ == Uses::all) return false;
  picking_ = StrideWalk::start(*walk_, place, view);
  if (picking_ != nullptr) state_ = State::picking;
  return picking_ != nullptr;
}

bool Readahead::start_stream(Step kind, const WalkPlace& place, const PageRun& need,
                             const window::WindowView& view) {
  std::shared_ptr<window::WindowFile> file = env_->window_file(view);
  if (file == nullptr) return false;
  if (file->path() == ReadPath::page_faults) {
    // Page faults are as good, unless the program skips values.
    if (!env_->no_readahead()) {
      walk_ = std::make_unique<window::Walk>(std::move(file));
      Prefetcher::existing()->add(*walk_);
      if (pick(place, view)) return true;
      forget();
      return false;
    }
    if (uses_ == Uses::all) return false;                // lookups keep MDB_NORDAHEAD
    Prefetcher::existing()->use_readahead(*file, true);  // MDB_NORDAHEAD was for lookups: this is a walk
    hinted_file_ = std::move(file);
    return false;
  }
  walk_ = std::make_unique<window::Walk>(file);
  Prefetcher::existing()->add(*walk_);
  state_ = State::stream;
  if (uses_ == Uses::unknown) used_ = kAllUsed;
  history_ = {need.first, 0, ~std::uint64_t{0}, 0, 0};
  trail_ = Trail();
  chunks_.clear();
  passed_ = fresh_ = 0;
  horizon_ = kind == Step::edge && !file->local ? kFirstHorizon : kJumpHorizon;
  left_ns_ = 0;
  given_before_ = 0;
  unread_ = cached_ = replan_in_ = 0;
  samples_.clear();
  return true;
}

}  // namespace lmdbio::ahead
