#include "lmdbio/window/chunk_cache.h"

#include <algorithm>
#include <cinttypes>
#include <utility>

#include "lmdbio/base/config.h"
#include "lmdbio/base/log.h"
#include "lmdbio/base/memory_facts.h"

namespace lmdbio::window {

namespace {

constexpr std::size_t kSmallChunk = Window::kHugePage, kUsualChunk = 2 * Window::kHugePage;
/// A process uses small chunks if its memory limit is below kLittleMemory, or below kLittleForAll if all
/// processes share one limit.
constexpr std::uint64_t kLittleMemory = std::uint64_t{64} << 20, kLittleForAll = std::uint64_t{256} << 20;
/// Upper limit on the chunks that are evicted under one hold of the lock when other processes need the
/// memory.
constexpr unsigned kEvictedAtOnce = 16;
/// A published chunk splits the mapping of its file in two.  Memory of prefetched values takes two VMAs as
/// well, since a forked child inherits only a part of it.
constexpr std::uint64_t kChunkVmas = 2;
constexpr std::uint64_t reserved_vmas(gather::MemoryUse use) noexcept {
  return use == gather::MemoryUse::prefetch ? 2 : 0;
}

struct Places {
  WindowFile& file;
  Staging* staging;
  bool publish(ChunkIndex i) noexcept {
    return file.window->publish(file.offset(i), file.bytes_in(i), *staging);
  }
  bool restore(ChunkIndex i) noexcept { return file.window->restore(file.offset(i), file.chunk_bytes); }
  bool restore_all() noexcept { return file.window->restore(0, file.window->length()); }
};

/// Makes ChunkTable restore the whole window with one call, because restore() of a single chunk always fails.
struct WholeWindow : Places {
  bool restore(ChunkIndex) noexcept { return false; }
};

}  // namespace

ChunkCache::ChunkCache(ChunkPlans& plans) noexcept
    : ChunkCache(plans, config().memory_limit(memory_facts().total)) {}

ChunkCache::ChunkCache(ChunkPlans& plans, std::uint64_t limit) noexcept
    : plans_(plans),
      chunk_bytes_(limit < (config().memory_is_agreed ? kLittleForAll : kLittleMemory) ? kSmallChunk
                                                                                       : kUsualChunk),
      budget_({limit < 2 * chunk_bytes_ ? 0 : limit, config().memory_percent != 0, gather::vmas_to_use(),
               config().memory_is_agreed ? &note_ : nullptr}) {}

bool ChunkCache::take_memory(WindowFile& file, bool urgent) noexcept {
  if (file.keeps_chunks()) return true;  // counted when it is published
  if (evicts_behind(file.used_bytes, file.comes_around, budget_.limit_now())) {
    const Resident* const oldest = file.residents.oldest();
    if (oldest != nullptr && plans_.clock() - oldest->left >= kKeptBehind && !is_to_stay(file, *oldest) &&
        !plans_.is_planned(file, oldest->chunk))
      (void)evict(file, *oldest);
  }
  if (file.shares_chunks && file.source->is_full()) make_room_for_others(file, urgent);
  if (!std::exchange(joined_, true)) budget_.join(gather::MemoryUse::chunks);
  if (budget_.somebody_waits()) {  // the memory is for the waiting reader, even if chunks could be evicted
    shortage_.store(file.chunk_bytes, std::memory_order_relaxed);
    return false;
  }
  while (!budget_.has_room(gather::MemoryUse::chunks, file.chunk_bytes, kChunkVmas))
    if (!evict_one(false) && !(urgent && evict_one(true))) {
      shortage_.store(file.chunk_bytes, std::memory_order_relaxed);
      return false;
    }
  budget_.take(gather::MemoryUse::chunks, file.chunk_bytes, 0);
  return true;
}

// Returns whether walks of other processes will reach the chunk soon.
bool ChunkCache::is_to_stay(const WindowFile& file, const Resident& r) const noexcept {
  return r.name && file.source->is_to_come(r.chunk);
}

// Evicts the oldest unplanned chunk that this process shares and that no other process will reach.  If there
// is none and `urgent`, evicts the oldest chunk that another process will reach.
void ChunkCache::make_room_for_others(WindowFile& file, bool urgent) noexcept {
  const Resident *least = nullptr, *least_to_stay = nullptr;
  for (const Residents::List* const list : {&file.residents.unused(), &file.residents.used()})
    for (const Resident& r : *list) {
      if (!r.name || plans_.is_planned(file, r.chunk)) continue;
      const Resident*& oldest = is_to_stay(file, r) ? least_to_stay : least;
      if (oldest == nullptr || r.left < oldest->left) oldest = &r;
      if (oldest == least) break;  // the list is sorted by `left`
    }
  if (least == nullptr && urgent) least = least_to_stay;
  if (least != nullptr) (void)evict(file, *least);
}

bool ChunkCache::keeps_shared(bool give_back) noexcept {
  bool keeps = false;
  for (WindowFile* const f : files_)
    f->residents.for_each([&](const Resident& r) {
      if (r.is_shared && !(give_back && evict(*f, r))) keeps = true;
    });
  return keeps;
}

bool ChunkCache::shrink() noexcept {
  for (unsigned i = 0; i < kEvictedAtOnce; ++i)
    if (budget_.excess() == 0 || !(evict_one(false) || (may_shrink() && evict_one(true)))) return false;
  return budget_.excess() != 0;
}

void ChunkCache::return_memory(const WindowFile& file) noexcept {
  if (!file.keeps_chunks()) budget_.give_back(gather::MemoryUse::chunks, file.chunk_bytes, 0);
}

bool ChunkCache::reserve(gather::MemoryUse use, std::uint64_t bytes, gather::Urgency urgency) noexcept {
  const std::uint64_t vmas = reserved_vmas(use);
  if (urgency == gather::Urgency::ahead) {
    if (!budget_.within_share(use, bytes) || budget_.vmas_left() < vmas || budget_.somebody_waits())
      return false;
    while (!budget_.has_room(use, bytes, vmas))
      if (!may_shrink() || !evict_one(false)) return false;
  } else {
    if (!could_take(use, bytes, 0)) return false;  // evict no chunk if the request cannot succeed anyway
    while (!budget_.has_room_for_need(bytes, use))
      if ((urgency == gather::Urgency::needed && !may_shrink()) || !evict_one(true)) return false;
  }
  budget_.take(use, bytes, vmas);
  return true;
}

// Returns whether chunks have more memory than is guaranteed to walks.  Without walks nothing is
// guaranteed.
bool ChunkCache::may_shrink() const noexcept {
  return !budget_.has_users(gather::MemoryUse::chunks) ||
         budget_.used(gather::MemoryUse::chunks) > budget_.guaranteed(gather::MemoryUse::chunks);
}

std::uint64_t ChunkCache::room_for_needs() const noexcept {
  const std::uint64_t stay = budget_.used_within_limit() - budget_.used(gather::MemoryUse::chunks);
  return budget_.limit() - std::min(stay, budget_.limit());
}

bool ChunkCache::could_take(gather::MemoryUse use, std::uint64_t bytes,
                            std::uint64_t of_readers) const noexcept {
  const std::uint64_t gone = budget_.used(gather::MemoryUse::chunks) +
                             std::min(of_readers, budget_.used(gather::MemoryUse::readers));
  return budget_.used_within_limit() - gone + bytes + budget_.left_by_needs(use, of_readers) <=
         budget_.limit();
}

void ChunkCache::walks_ended() noexcept {
  if (std::exchange(joined_, false)) budget_.leave(gather::MemoryUse::chunks);
}

void ChunkCache::give_back(gather::MemoryUse use, std::uint64_t bytes) noexcept {
  budget_.give_back(use, bytes, reserved_vmas(use));
}

EvictionRank ChunkCache::rank_of(const WindowFile& file, const Resident& r) const noexcept {
  EvictionFacts facts;
  facts.used = r.used;
  facts.age = plans_.clock() - r.left;
  facts.published = r.left;
  facts.of_others = is_to_stay(file, r);
  plans_.look_up(file, r.chunk, facts);
  return eviction_rank(facts);
}

bool ChunkCache::evict_one(bool even_planned) noexcept {
  WindowFile* best_file = nullptr;
  const Resident* best = nullptr;
  EvictionRank best_rank;
  for (WindowFile* const f : files_) {
    if (f->keeps_chunks()) continue;
    const Resident* const r = first_to_go(
        f->residents, plans_.clock(), even_planned,
        [&](const Resident& c) { return plans_.is_planned(*f, c.chunk); },
        [&](const Resident& c) { return is_to_stay(*f, c); },
        [&](const Resident& c) { return rank_of(*f, c); });
    if (r == nullptr) continue;
    const EvictionRank rank = rank_of(*f, *r);
    if (best != nullptr && rank <= best_rank) continue;
    best_rank = rank;
    best_file = f;
    best = r;
  }
  if (best == nullptr) return false;
  if (best_rank.rank < kLeastUnplanned) ++best_file->stats.stole;
  return evict(*best_file, *best);
}

bool ChunkCache::evict(WindowFile& file, const Resident& resident) noexcept {
  const Resident r = resident;
  if (!file.table.reclaim(r.chunk, Places{file, nullptr})) return false;
  file.residents.erase(r.chunk);
  budget_.give_back(file.memory_use(), file.chunk_bytes, kChunkVmas);
  went(file, r);
  ++file.stats.reclaimed;
  if (!r.used) file.stats.wasted += file.bytes_in(r.chunk);
  plans_.chunk_went(file, r.chunk);
  return true;
}

void ChunkCache::went(WindowFile& file, const Resident& r) noexcept {
  if (r.name) file.source->drop(*r.name);
}

bool ChunkCache::finish(WindowFile& file, ChunkIndex chunk, ChunkTable::Generation generation, bool good,
                        Staging& staging, const std::optional<node::ChunkName>& name) noexcept {
  try {
    file.residents.prepare(chunk);
  } catch (...) {
    good = false;
  }
  const bool open = file.users != 0, is_shared = staging.is_shared();
  if (!file.table.finish(chunk, generation, good && open, Places{file, &staging})) {
    if (name) file.source->drop(*name);
    file.residents.cancel(chunk);
    staging = Staging();
    return_memory(file);
    return false;
  }
  budget_.take(file.memory_use(), file.keeps_chunks() ? file.chunk_bytes : 0, kChunkVmas);
  if (file.keeps_chunks()) complain_if_full(file);
  EvictionFacts facts;
  plans_.look_up(file, chunk, facts);
  file.residents.add({chunk, facts.awaited, plans_.clock(), name, is_shared});
  ++file.stats.published;
  file.stats.most_vmas.raise_to(budget_.vmas());
  file.stats.most_resident.raise_to(file.residents.size());
  return true;
}

void ChunkCache::complain_if_full(const WindowFile& file) noexcept {
  if (!budget_.over_limit() || std::exchange(full_logged_, true)) return;
  log_line(LogLevel::warn,
           "%s: cannot be mapped, and the data read from it takes more memory than LMDBIO_MEMORY (%" PRIu64
           " MiB)",
           file.name.c_str(), budget_.limit() >> 20);
}

Result<std::size_t> ChunkCache::advance(WindowFile& file, std::uint64_t snapshot) noexcept {
  const std::size_t residents = file.residents.size();
  if (const Status st = file.table.advance(snapshot, Places{file, nullptr}); !st.ok()) return st;
  if (residents != 0) forget_residents(file);
  return residents;
}

bool ChunkCache::give_all_back(WindowFile& file) noexcept {
  if (file.keeps_chunks()) (void)empty(file);
  while (!file.residents.empty() && evict(file, *file.residents.oldest())) {
  }
  if (file.residents.empty()) return true;
  if (!file.table.drop_all(Places{file, nullptr}).ok()) return false;
  forget_residents(file);
  return true;
}

bool ChunkCache::empty(WindowFile& file) noexcept {
  if (!file.table.drop_all(WholeWindow{{file, nullptr}}).ok()) return false;
  budget_.give_back(file.memory_use(), file.residents.size() * file.chunk_bytes,
                    kChunkVmas * file.residents.size());
  file.residents.for_each([&](const Resident& r) { went(file, r); });
  file.residents.clear();
  return true;
}

// Counts all chunks of the file as evicted.  The mapping of the file has replaced them.
void ChunkCache::forget_residents(WindowFile& file) noexcept {
  budget_.give_back(file.memory_use(), file.residents.size() * file.chunk_bytes,
                    kChunkVmas * file.residents.size());
  file.stats.reclaimed += file.residents.size();
  file.residents.for_each([&](const Resident& r) { went(file, r); });
  file.residents.clear();
}

void ChunkCache::after_fork() noexcept {
  budget_.forget_all();
  joined_ = false;
  for (WindowFile* const f : files_) {
    f->table.forget_fills();
    // One call restores the whole window, so the states of its pieces do not matter.
    if (!f->keeps_chunks() && f->table.drop_all(WholeWindow{{*f, nullptr}}).ok()) f->residents.clear();
    f->residents.for_each([](Resident& r) { r.name.reset(); });  // the names are the parent's
    // Counts the chunks that stay: chunks of files that cannot be mapped, and chunks that could not be
    // restored.
    budget_.take(f->memory_use(), f->residents.size() * f->chunk_bytes, kChunkVmas * f->residents.size());
  }
}

}  // namespace lmdbio::window
