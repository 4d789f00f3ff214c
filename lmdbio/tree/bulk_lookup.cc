#include "lmdbio/tree/bulk_lookup.h"

#include <algorithm>
#include <bit>
#include <cerrno>

#include "lmdbio/format/search.h"

namespace lmdbio::tree {

using format::PageView;

namespace {

constexpr std::size_t kLeastCells = 8;
/// Upper limit on the keys that descend together.
constexpr std::size_t kMostTogether = 512;

unsigned shift_of(std::size_t power_of_two) noexcept {
  return static_cast<unsigned>(std::countr_zero(power_of_two));
}

}  // namespace

// --- pages ------------------------------------------------------------------------------------------------

PageStore::PageStore(ReadQueue& queue, unsigned page_shift, std::uint64_t pages, std::size_t most_bytes,
                     const Residency* residency, std::uint64_t origin, format::Version version) noexcept
    : queue_(queue),
      residency_(residency),
      page_shift_(page_shift),
      cell_shift_(std::max(page_shift, shift_of(queue.alignment()))),
      version_(version),
      pages_(pages),
      origin_(origin),
      most_cells_(std::max(most_bytes >> cell_shift_, kLeastCells)) {}

void PageStore::clear(std::uint64_t pages) noexcept {
  pages_ = pages;
  index_.clear();
  for (Slot& s : slots_) s = {};
}

const PageStore::Slot* PageStore::slot_of(std::uint64_t page) const noexcept {
  if (page >= pages_) return nullptr;
  const auto found = index_.find(page >> (cell_shift_ - page_shift_));
  return found != index_.end() && slots_[found->second].full ? &slots_[found->second] : nullptr;
}

std::byte* PageStore::memory(std::size_t slot) const noexcept {
  return blocks_[slot / kBlock].get() + ((slot % kBlock) << cell_shift_);
}

const std::byte* PageStore::find(std::uint64_t page) const noexcept {
  const Slot* const s = slot_of(page);
  if (s == nullptr) return nullptr;
  const std::uint64_t in_cell = page & ((std::uint64_t{1} << (cell_shift_ - page_shift_)) - 1);
  return memory(static_cast<std::size_t>(s - slots_.data())) + (in_cell << page_shift_);
}

bool PageStore::was_cached(std::uint64_t page) const noexcept {
  const Slot* const s = slot_of(page);
  return s != nullptr && s->cached;
}

// Returns the slot for a new cell.  Adds slots up to the limit, then reuses a slot that is empty or was not
// requested recently (clock eviction).  If the current fetch needs all slots, adds one beyond the limit.
std::size_t PageStore::take_slot() {
  if (slots_.size() < most_cells_ || slots_.size() < kLeastCells) {
    slots_.emplace_back();
  } else {
    for (std::size_t tries = 0; tries < 2 * slots_.size(); ++tries) {
      const std::size_t at = hand_;
      hand_ = (hand_ + 1) % slots_.size();
      Slot& s = slots_[at];
      if (s.used == fetches_) continue;
      if (s.full && std::exchange(s.recent, false)) continue;
      if (s.full) index_.erase(s.cell);
      s = {};
      return at;
    }
    slots_.emplace_back();
  }
  if (slots_.size() > blocks_.size() * kBlock) {
    // A cell is aligned to its size.  This size is at least the queue's alignment, even if pages are smaller.
    const std::align_val_t alignment{std::size_t{1} << cell_shift_};
    try {
      blocks_.emplace_back(static_cast<std::byte*>(::operator new(kBlock << cell_shift_, alignment)),
                           FreeBlock{alignment});
    } catch (...) {
      slots_.pop_back();
      throw;
    }
  }
  return slots_.size() - 1;
}

Status PageStore::fetch(std::span<const std::uint64_t> wanted) {
  ++fetches_;
  missing_.clear();
  try {
    // Mark cached pages first, so that they are not evicted.
    for (const std::uint64_t page : wanted) {
      if (const Slot* const s = slot_of(page); s != nullptr) {
        Slot& there = slots_[static_cast<std::size_t>(s - slots_.data())];
        there.used = fetches_;
        there.recent = true;
      }
    }
    for (const std::uint64_t page : wanted) {
      const std::uint64_t cell = page >> (cell_shift_ - page_shift_);
      if (page >= pages_ || index_.contains(cell)) continue;
      const std::size_t at = take_slot();
      slots_[at].cell = cell;
      slots_[at].used = fetches_;
      missing_.push_back(at);
      index_.emplace(cell, at);
    }
    if (missing_.empty()) return {};
    // Cells adjacent in the file get adjacent memory.
    std::vector<std::uint64_t> cells;
    for (const std::size_t at : missing_) cells.push_back(slots_[at].cell);
    std::sort(cells.begin(), cells.end());
    std::sort(missing_.begin(), missing_.end());
    for (std::size_t i = 0; i < cells.size(); ++i) {
      slots_[missing_[i]].cell = cells[i];
      index_[cells[i]] = missing_[i];
    }
  } catch (...) {
    for (const std::size_t at : missing_) index_.erase(slots_[at].cell);
    throw;
  }
  const Status st = read(missing_);
  for (const std::size_t at : missing_) {
    // `recent` is set only when the cell is requested again, so leaf pages are evicted before branch pages.
    slots_[at].full = st.ok();
    if (!st.ok()) index_.erase(slots_[at].cell);
  }
  if (st.ok()) pages_read_ += missing_.size() << (cell_shift_ - page_shift_);
  return st;
}

Status PageStore::read(std::span<const std::size_t> slots) {
  if (residency_ != nullptr)
    for (const std::size_t at : slots)
      slots_[at].cached =
          residency_->share(slots_[at].cell << cell_shift_, std::uint64_t{1} << cell_shift_).value_or(0) >= 1;
  ReadGroup group;
  Status st;
  for (std::size_t i = 0; i < slots.size() && st.ok();) {
    std::size_t n = 1;
    while (i + n < slots.size() && slots[i + n] == slots[i] + n && slots[i + n] % kBlock != 0 &&
           slots_[slots[i + n]].cell == slots_[slots[i]].cell + n)
      ++n;
    st =
        queue_.add(group, {origin_ + (slots_[slots[i]].cell << cell_shift_), std::uint64_t{n} << cell_shift_},
                   memory(slots[i]));
    i += n;
  }
  if (!st.ok()) {
    queue_.drop(group);
    return st;
  }
  return queue_.wait(group);
}

// --- keys -------------------------------------------------------------------------------------------------

namespace {

/// What one level's search found: a child page, a place in a leaf, or damage.
enum class Step : unsigned char { down, leaf, damaged };

Step step(format::Version version, const std::byte* bytes, std::size_t page_size,
          const format::Comparator& order, const MDB_val& key, std::uint64_t& page, PageView& view,
          format::Place& place) {
  if (page < format::kMetaPages || !PageView::open(version, bytes, page_size, format::Pgno{page}, view) ||
      view.is_leaf2() || view.count() < (view.is_branch() ? 2u : 1u))
    return Step::damaged;
  const auto* const k = static_cast<const std::byte*>(key.mv_data);
  const bool good = order.order != format::Order::memn ? format::search_page(view, order, key, 0, place)
                    : view.is_leaf() ? format::search_memn<true>(view, k, key.mv_size, 0, place)
                                     : format::search_memn<false>(view, k, key.mv_size, 0, place);
  if (!good) return Step::damaged;
  if (view.is_leaf()) return Step::leaf;
  const unsigned taken = place.exact ? place.index : place.index - 1;
  format::Node node;
  if (taken >= view.count() || !view.node(taken, node)) return Step::damaged;
  page = format::raw(node.child());
  return Step::down;
}

Status find_some(PageStore& store, const format::DbRecord& db, const format::Comparator& order,
                 std::span<const MDB_val> keys, std::size_t first, const KeyPlaceFunction& tell) {
  Status failed;
  std::vector<std::size_t> going(keys.size());
  for (std::size_t i = 0; i < going.size(); ++i) going[i] = i;
  std::vector<std::uint64_t> at(keys.size(), format::raw(db.root));
  std::vector<std::uint64_t> wanted;
  for (unsigned level = 1; level <= format::kMaxDepth && !going.empty(); ++level) {
    wanted.clear();
    for (const std::size_t i : going) wanted.push_back(at[i]);
    std::sort(wanted.begin(), wanted.end());
    wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
    if (const Status st = store.fetch(wanted); !st.ok()) failed = st;
    std::size_t left = 0;
    for (const std::size_t i : going) {
      KeyPlace out;
      format::Place place;
      const std::uint64_t page = at[i];
      const std::byte* const bytes = store.find(page);
      const Step s = bytes != nullptr ? step(store.version(), bytes, store.page_size(), order, keys[i], at[i],
                                             out.page, place)
                                      : Step::damaged;
      if (s == Step::down) {
        going[left++] = i;
        continue;
      }
      if (s == Step::leaf && !place.exact) out.outcome = KeyPlace::Outcome::absent;
      if (s == Step::leaf && place.exact && out.page.node(place.index, out.node)) {
        out.outcome = KeyPlace::Outcome::found;
        out.leaf = page;
        out.slot = place.index;
        out.cached = store.was_cached(page);
      }
      tell(first + i, out);
    }
    going.resize(left);
  }
  for (const std::size_t i : going) tell(first + i, {});  // too many levels
  return failed;
}

}  // namespace

Status find_keys(PageStore& store, const format::DbRecord& db, const format::Comparator& order,
                 std::span<const MDB_val> keys, const KeyPlaceFunction& tell) {
  if (order.order == format::Order::user) return Status::from_errno(ENOTSUP);
  if (db.root == format::kNoPage) {
    KeyPlace none;
    none.outcome = KeyPlace::Outcome::absent;
    for (std::size_t i = 0; i < keys.size(); ++i) tell(i, none);
    return {};
  }
  Status failed;
  const std::size_t together = std::clamp<std::size_t>(store.capacity() / 2, 1, kMostTogether);
  for (std::size_t first = 0; first < keys.size(); first += together) {
    const std::span<const MDB_val> some = keys.subspan(first, std::min(together, keys.size() - first));
    if (const Status st = find_some(store, db, order, some, first, tell); !st.ok() && failed.ok())
      failed = st;
  }
  return failed;
}

}  // namespace lmdbio::tree
