#include "lmdbio/window/schedule.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "lmdbio/window/path_change.h"

namespace lmdbio::window {

namespace {

/// If a walk makes no plan while other walks make more than this many, its plan no longer protects its chunks
/// from eviction.
constexpr std::uint64_t kAbandoned = 64;

}  // namespace

void Schedule::add(Walk& walk) noexcept {
  try {
    walks_.push_back(&walk);
  } catch (...) {  // out of memory: plan() tries again
  }
}

void Schedule::remove(Walk& walk) noexcept {
  std::erase(walks_, &walk);
  count_going();
}

bool Schedule::goes_on(const Walk& walk) const noexcept { return plans_ - walk.last_ <= kAbandoned; }

void Schedule::count_going() noexcept {
  const auto n = std::count_if(walks_.begin(), walks_.end(), [this](const Walk* w) { return goes_on(*w); });
  going_.store(static_cast<std::size_t>(std::max<std::ptrdiff_t>(n, 1)), std::memory_order_relaxed);
}

bool Schedule::plan(Walk& walk, const ReadPlan& wanted, std::optional<ChunkIndex>& filled) noexcept {
  WindowFile& file = walk.file();
  const ChunkRange& needed = wanted.needed_chunks;
  if (!needed.empty() && std::exchange(walk.at_, needed.first) != needed.first) ++plans_;
  walk.last_ = plans_;
  try {
    if (std::find(walks_.begin(), walks_.end(), &walk) == walks_.end()) walks_.push_back(&walk);
    count_going();
    std::vector<Walk::Entry> plan;
    plan.reserve(wanted.chunks.size());
    for (const ChunkIndex c : wanted.chunks) {
      const auto old = std::find_if(walk.plan_.begin(), walk.plan_.end(),
                                    [c](const Walk::Entry& e) { return e.chunk == c; });
      Walk::Entry e;
      e.chunk = c;
      if (old != walk.plan_.end() && old->outcome != Outcome::failed) e = *old;
      e.awaited = needed.contains(c);
      // The other process may have read the chunk by now.  A new claim can then publish the chunk ahead of
      // the walk.
      if (e.outcome == Outcome::claimed && !e.awaited && file.path() == ReadPath::direct)
        e.outcome = Outcome::wanted;
      const ChunkState state = file.table.state(c);
      if (e.outcome == Outcome::ready && state != ChunkState::resident) e.outcome = Outcome::wanted;
      if (e.outcome == Outcome::wanted && state == ChunkState::resident) e.outcome = Outcome::ready;
      if (e.awaited && !walk.has_come_to(c)) {
        file.stats.asked += file.bytes_in(c);
        if (e.outcome == Outcome::filled) filled = c;
      }
      plan.push_back(e);
    }
    for (const Walk::Entry& e : walk.plan_)  // chunks that the walk has passed
      if ((e.outcome == Outcome::mapped || e.outcome == Outcome::filled) && file.drop_behind &&
          std::find(wanted.chunks.begin(), wanted.chunks.end(), e.chunk) == wanted.chunks.end())
        drop_behind(file, e.chunk);
    walk.plan_.swap(plan);
    walk.extents_.assign(wanted.extents.begin(), wanted.extents.end());
    walk.next_extent_ = 0;
    walk.awaited_ = wanted.needed_extent;  // set now because the read may fail before the walk waits for it
    walk.extent_error_ = 0;
    file.stats.asked += walk.awaited_.bytes;
  } catch (...) {
    walk.clear_plan();
    return false;
  }
  for (const Walk::Entry& e : walk.plan_) file.residents.touch(e.chunk, plans_, e.awaited);
  return true;
}

// Also returns true if the plan adds nothing, but a chunk that the walk needs now is still being read.
bool Schedule::has_work(const Walk& walk) const noexcept {
  return !walk.extents_.empty() ||
         std::any_of(walk.plan_.begin(), walk.plan_.end(), [](const Walk::Entry& e) {
           return e.outcome == Outcome::wanted || (e.awaited && !e.settled());
         });
}

std::optional<ChunkIndex> Schedule::open_chunk(const Walk& walk) const noexcept {
  const auto open = std::find_if(walk.plan_.begin(), walk.plan_.end(),
                                 [](const Walk::Entry& e) { return e.awaited && !e.settled(); });
  return open == walk.plan_.end() ? std::nullopt : std::optional<ChunkIndex>(open->chunk);
}

std::optional<ChunkIndex> Schedule::claimed_chunk(const Walk& walk) const noexcept {
  const auto claimed = std::find_if(walk.plan_.begin(), walk.plan_.end(), [](const Walk::Entry& e) {
    return e.awaited && e.outcome == Outcome::claimed;
  });
  return claimed == walk.plan_.end() ? std::nullopt : std::optional<ChunkIndex>(claimed->chunk);
}

bool Schedule::claim_ended(Walk& walk, ChunkIndex chunk, bool there) noexcept {
  for (Walk::Entry& e : walk.plan_) {
    if (e.chunk != chunk || e.outcome != Outcome::claimed) continue;
    e.outcome = there ? Outcome::filled : Outcome::wanted;
    return !there;
  }
  return false;
}

bool Schedule::is_extent_open(const Walk& walk) const noexcept {
  const Extent& needed = walk.awaited_;
  if (needed.bytes == 0) return false;
  const auto is_part = [&needed](const Extent& e) { return overlap(e, needed); };
  const auto wanted = walk.extents_.begin() + static_cast<std::ptrdiff_t>(walk.next_extent_);
  const WindowFile& file = walk.file();
  return std::any_of(
             wanted, walk.extents_.end(),
             [&](const Extent& e) { return is_part(e) && walk.asked_.first_missing(e).bytes != 0; }) ||
         file.reading.overlaps(needed);
}

int Schedule::take_error(Walk& walk) noexcept {
  int error = 0;
  for (Walk::Entry& e : walk.plan_) {
    if (e.outcome != Outcome::failed) continue;
    if (e.awaited && error == 0) error = e.error;
  }
  if (error != 0)
    for (Walk::Entry& e : walk.plan_)
      if (e.outcome == Outcome::failed) e.outcome = Outcome::wanted;
  return error;
}

void Schedule::leave_to_mapping(Walk& walk) noexcept {
  for (Walk::Entry& e : walk.plan_)
    if (e.outcome == Outcome::wanted) e.outcome = Outcome::mapped;
}

bool Schedule::all_cached(const Walk& walk) const noexcept {
  const auto looks_cached = [](const Walk::Entry& e) {
    return e.outcome == Outcome::cached || (e.outcome == Outcome::wanted && !e.awaited);
  };
  return std::all_of(walk.plan_.begin(), walk.plan_.end(), looks_cached) &&
         std::any_of(walk.plan_.begin(), walk.plan_.end(), [](const Walk::Entry& e) { return e.awaited; });
}

bool Schedule::next(ChunkCache& chunks, ReadJob& job, bool idle) {
  return next_chunk(chunks, job, idle) || next_extent(chunks, job);
}

bool Schedule::next_chunk(ChunkCache& chunks, ReadJob& job, bool idle) {
  for (std::size_t k = 0; k < walks_.size(); ++k) {
    const std::size_t at = (next_walk_ + k) % walks_.size();
    Walk& walk = *walks_[at];
    WindowFile& file = walk.file();
    for (Walk::Entry& e : walk.plan_) {
      if (e.outcome != Outcome::wanted) continue;
      const ChunkState state = file.table.state(e.chunk);
      if (state == ChunkState::filling) {
        e.outcome = Outcome::filling;
        continue;
      }
      if (state == ChunkState::resident || file.bytes_in(e.chunk) == 0) {
        e.outcome = state == ChunkState::resident ? Outcome::ready : Outcome::mapped;
        if (e.awaited && walk.waiting_) walk.settled_.notify();
        continue;
      }
      if (file.has_page_cache() && chunks.budget().nearly_full()) {
        e.outcome = Outcome::mapped;
        if (e.awaited && walk.waiting_) walk.settled_.notify();
        continue;
      }
      check_memory(file, chunks.budget().limit());
      const bool direct = file.path() == ReadPath::direct;
      if (direct && !chunks.take_memory(file, e.awaited)) {
        if (!e.awaited) break;  // skip the rest of the walk's plan, which is needed later
        if (idle) {
          e.outcome = Outcome::mapped;
          if (walk.waiting_) walk.settled_.notify();
        }
        continue;
      }
      job.file = file.shared_from_this();
      try {
        job.what =
            ChunkJob{e.chunk, file.table.start(e.chunk), direct, file.table.newest_snapshot(), 0, e.awaited};
      } catch (...) {
        if (direct) chunks.return_memory(file);
        throw;
      }
      if (!direct) file.page_cache_use.read += file.bytes_in(e.chunk);
      e.outcome = Outcome::filling;
      next_walk_ = at + 1;
      return true;
    }
  }
  return false;
}

bool Schedule::next_extent(ChunkCache& chunks, ReadJob& job) {
  for (std::size_t k = 0; k < walks_.size(); ++k) {
    const std::size_t at = (next_walk_ + k) % walks_.size();
    Walk& walk = *walks_[at];
    if (walk.next_extent_ < walk.extents_.size() && walk.file().has_page_cache() &&
        chunks.budget().nearly_full()) {  // the extents fall back to page faults
      walk.next_extent_ = walk.extents_.size();
      if (walk.waiting_) walk.settled_.notify();
    }
    while (walk.next_extent_ < walk.extents_.size()) {
      // Extents of earlier plans may overlap this one: only the bytes that no plan has requested are read.
      const Extent e = walk.asked_.first_missing(walk.extents_[walk.next_extent_]);
      if (e.bytes == 0) {
        ++walk.next_extent_;
        continue;
      }
      walk.asked_.add(e);
      walk.has_asked_.store(true, std::memory_order_relaxed);
      walk.file().reading.add(e);
      // If this read fails, the extent is missing again.  The next plan then requests it.
      if (walk.asked_.first_missing(walk.extents_[walk.next_extent_]).bytes == 0) ++walk.next_extent_;
      job.file = walk.file().shared_from_this();
      job.what = ExtentJob{e};
      next_walk_ = at + 1;
      return true;
    }
  }
  return false;
}

void Schedule::settle(WindowFile& file, ChunkIndex chunk, Outcome outcome, int error) noexcept {
  for (Walk* const w : walks_) {
    if (&w->file() != &file) continue;
    bool awaited = false;
    for (Walk::Entry& e : w->plan_) {
      if (e.chunk != chunk || e.settled()) continue;
      e.outcome = outcome;
      e.error = error;
      awaited = awaited || e.awaited;
    }
    if (awaited && w->waiting_) w->settled_.notify();
  }
}

void Schedule::extent_ended(WindowFile& file, const Extent& extent, int error) noexcept {
  file.reading.remove(extent);
  if (error != 0) file.read_failed.store(true, std::memory_order_relaxed);
  for (Walk* const w : walks_) {
    if (&w->file() != &file) continue;
    if (error != 0) w->asked_.remove(extent);
    if (w->awaited_.bytes == 0 || !overlap(w->awaited_, extent)) continue;
    if (error != 0) w->extent_error_ = error;
    if (w->waiting_) w->settled_.notify();
  }
}

void Schedule::clear_plans(const WindowFile& file) noexcept {
  for (Walk* const w : walks_)
    if (&w->file() == &file) w->clear_plan();
}

void Schedule::want_again(const WindowFile& file) noexcept {
  for (Walk* const w : walks_) {
    if (&w->file() != &file) continue;
    for (Walk::Entry& e : w->plan_)
      if (e.outcome == Outcome::ready) e.outcome = Outcome::wanted;
  }
}

void Schedule::give_up() noexcept {
  for (Walk* const w : walks_) {
    leave_to_mapping(*w);
    w->next_extent_ = w->extents_.size();
    if (w->waiting_) w->settled_.notify();
  }
}

void Schedule::after_fork() noexcept {
  for (Walk* const w : walks_) {
    w->clear_plan();
    w->asked_.clear();
    w->has_asked_ = false;
    w->waiting_ = false;
  }
  // The walks of the parent's other threads never end here.  Walks that go on in the child are added by their
  // next plan.
  walks_.clear();
}

bool Schedule::is_planned(const WindowFile& file, ChunkIndex chunk) const noexcept {
  return std::any_of(walks_.begin(), walks_.end(), [&](const Walk* w) {
    return &w->file() == &file && goes_on(*w) &&
           std::any_of(w->plan_.begin(), w->plan_.end(),
                       [chunk](const Walk::Entry& e) { return e.chunk == chunk; });
  });
}

void Schedule::look_up(const WindowFile& file, ChunkIndex chunk, EvictionFacts& out) const noexcept {
  out.planned = is_planned(file, chunk);
  for (const Walk* const w : walks_) {
    if (&w->file() != &file) continue;
    for (std::size_t at = 0; at < w->plan_.size(); ++at) {
      if (w->plan_[at].chunk != chunk) continue;
      out.awaited = out.awaited || w->plan_[at].awaited;
      out.position = std::max<std::uint64_t>(out.position, at);
    }
  }
}

void Schedule::chunk_went(WindowFile& file, ChunkIndex chunk) noexcept {
  for (Walk* const w : walks_) {
    if (&w->file() != &file) continue;
    for (Walk::Entry& e : w->plan_)
      if (e.chunk == chunk && e.outcome == Outcome::ready) e.outcome = Outcome::mapped;
  }
}

// Drops from the page cache a chunk that a walk has left behind, because this program must not evict pages of
// other programs.
void Schedule::drop_behind(WindowFile& file, ChunkIndex chunk) noexcept {
  const std::uint64_t at = file.offset(chunk), bytes = file.bytes_in(chunk);
  if (bytes == 0 || is_planned(file, chunk)) return;
  // The kernel drops no pages that are mapped.
  (void)::madvise(const_cast<std::byte*>(file.window->base()) + at, bytes, MADV_DONTNEED);
  file.dropping.add({at, bytes});  // dropped by the I/O thread, which has the descriptor
}

}  // namespace lmdbio::window
