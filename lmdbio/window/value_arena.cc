#include "lmdbio/window/value_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "lmdbio/base/align.h"
#include "lmdbio/window/window.h"

namespace lmdbio::window {

namespace {

constexpr std::uint64_t kMostKept = std::uint64_t{256} << 20;

}  // namespace

// --- slabs that are not in use ---

SlabPool::SlabPool(Prefetcher& prefetcher) noexcept
    : prefetcher_(prefetcher),
      most_(std::clamp<std::uint64_t>(prefetcher.memory().limit() / 8, kSlab, kMostKept)),
      forks_(prefetcher.forks()) {}

Mapping SlabPool::take(std::size_t bytes) noexcept {
  bytes = align_up(bytes, kSlab);
  {
    const std::lock_guard lock(prefetcher_);
    const unsigned forks = prefetcher_.forks();
    if (forks != forks_)
      for (Mapping& m : free_)
        (void)m.release();  // of the parent: not mapped here, or used for something else
    forks_ = forks;
    std::erase_if(free_, [](const Mapping& m) { return !m; });
    if (bytes == kSlab && !free_.empty()) {
      Mapping slab = std::move(free_.back());
      free_.pop_back();
      return slab;
    }
  }
  if (!prefetcher_.memory().take(gather::MemoryUse::prefetch, bytes, gather::Urgency::ahead)) return {};
  Result<Staging> made = Staging::make(bytes);
  if (!made) {
    prefetcher_.memory().give_back(gather::MemoryUse::prefetch, bytes);
    return {};
  }
  return made.value().take();
}

void SlabPool::give(Mapping slab) noexcept {
  const std::size_t bytes = slab.size();
  if (bytes == kSlab && ::madvise(slab.data(), bytes, MADV_DONTFORK) == 0) {
    const std::lock_guard lock(prefetcher_);
    if (!closed_ && forks_ == prefetcher_.forks() && (free_.size() + 1) * kSlab <= most_ &&
        prefetcher_.memory().may_keep(gather::MemoryUse::prefetch)) {
      try {
        free_.push_back(std::move(slab));
        return;
      } catch (...) {  // unmapped below
      }
    }
  }
  slab.reset();
  prefetcher_.memory().give_back(gather::MemoryUse::prefetch, bytes);
}

void SlabPool::close() noexcept {
  std::vector<Mapping> gone;
  {
    const std::lock_guard lock(prefetcher_);
    closed_ = true;
    gone.swap(free_);
    if (forks_ != prefetcher_.forks()) {
      for (Mapping& m : gone) (void)m.release();
      return;
    }
  }
  for (Mapping& m : gone) {
    const std::size_t bytes = m.size();
    m.reset();
    prefetcher_.memory().give_back(gather::MemoryUse::prefetch, bytes);
  }
}

// --- the memory of a transaction ---

ValueArena::Room ValueArena::take(std::size_t bytes) noexcept {
  try {
    auto read = std::make_unique<Read>();
    Slab* s = open_;
    if (s == nullptr || s->memory.size() - s->used < bytes) {
      auto made = std::make_unique<Slab>();
      slabs_.reserve(slabs_.size() + 1);
      made->memory = pool_.take(bytes);
      if (!made->memory) return {};
      s = made.get();
      slabs_.push_back(std::move(made));
      if (bytes < SlabPool::kSlab) open_ = s;  // smaller reads still use the open one
    }
    s->reads.reserve(s->reads.size() + 1);
    const Room room{s, std::exchange(s->used, s->used + bytes), read.get()};
    s->reads.push_back(std::move(read));
    return room;
  } catch (...) {
    return {};
  }
}

bool ValueArena::make_safe(Slab& slab) noexcept {
  if (slab.safe == slab.used) return true;
  if (::madvise(slab.memory.data() + slab.safe, slab.used - slab.safe, MADV_DOFORK) != 0) return false;
  slab.safe = slab.used;
  slab.safe_reads = slab.reads.size();
  return true;
}

bool ValueArena::empty_one(std::uint64_t passed) noexcept {
  Slab* oldest = nullptr;
  for (const std::unique_ptr<Slab>& s : slabs_) {
    if (s->inherited || s->given_out || s->newest >= passed || s->used == 0) continue;
    if (oldest != nullptr && oldest->newest <= s->newest) continue;
    if (std::all_of(s->reads.begin(), s->reads.end(),
                    [](const std::unique_ptr<Read>& r) { return r->group.done(); }))
      oldest = s.get();
  }
  if (oldest == nullptr) return false;
  if (oldest->safe != 0 && ::madvise(oldest->memory.data(), oldest->memory.size(), MADV_DONTFORK) != 0)
    return false;
  oldest->used = oldest->safe = oldest->safe_reads = 0;
  oldest->reads.clear();
  ++oldest->use;
  open_ = oldest;
  return true;
}

void ValueArena::clear() noexcept {
  for (const std::unique_ptr<Slab>& s : slabs_) {
    if (!s->inherited) {
      pool_.give(std::move(s->memory));
    } else if (const std::size_t bytes = s->safe; bytes != 0) {
      Mapping there(s->memory.release(), bytes);  // the rest does not exist in this process
    } else {
      (void)s->memory.release();
    }
  }
  slabs_.clear();
  open_ = nullptr;
}

void ValueArena::forget_unsafe() noexcept {
  open_ = nullptr;
  for (const std::unique_ptr<Slab>& s : slabs_) s->inherited = true;
}

}  // namespace lmdbio::window
