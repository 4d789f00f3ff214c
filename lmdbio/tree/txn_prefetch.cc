#include "lmdbio/tree/txn_prefetch.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "lmdbio/base/align.h"
#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/uncancelled.h"
#include "lmdbio/tree/env.h"
#include "lmdbio/tree/txn.h"
#include "lmdbio/window/prefetcher.h"

namespace lmdbio::tree {

using window::ValueArena;
using Kind = PrefetchedKey::Kind;

namespace {

/// Adjacent values are read together up to this many bytes.  A single value may be larger.
constexpr std::uint64_t kMostMerged = std::uint64_t{1} << 20;
/// Memory for pages of trees: 1 / kTreeShare of the limit, from kLeastTree to kMostTree bytes.
constexpr std::uint64_t kTreeShare = 16, kMostTree = std::uint64_t{32} << 20,
                        kLeastTree = std::uint64_t{128} << 10;
/// While all data is in the page cache, one key in this many is looked up.
constexpr unsigned kMostStep = 8;
constexpr std::size_t kScratch = std::size_t{1} << 20;
/// All reads into the page cache may share one buffer.  ThreadSanitizer reports that as a race.
#if defined(__SANITIZE_THREAD__)
constexpr std::size_t kScratches = 128;
#else
constexpr std::size_t kScratches = 1;
#endif

std::string_view text(const MDB_val& v) noexcept { return {static_cast<const char*>(v.mv_data), v.mv_size}; }

}  // namespace

std::unique_ptr<TxnPrefetch> TxnPrefetch::make(std::shared_ptr<PrefetchFile> file) noexcept {
  try {
    return std::unique_ptr<TxnPrefetch>(new TxnPrefetch(std::move(file)));
  } catch (...) {
    return nullptr;
  }
}

TxnPrefetch::TxnPrefetch(std::shared_ptr<PrefetchFile> file)
    : file_(std::move(file)),
      queues_(file_->file()),
      arena_(file_->slabs()),
      forks_(file_->prefetcher().forks()) {}

TxnPrefetch::~TxnPrefetch() {
  end();
  if (store_reserved_ != 0)
    file_->prefetcher().memory().give_back(gather::MemoryUse::prefetch, store_reserved_);
}

PrefetchCounters TxnPrefetch::take_counters() noexcept { return std::exchange(counters_, {}); }

// --- lifetime ---

// Creates the queues for a file of `file_bytes`.  The file may grow later, but a snapshot must not be larger
// than this size.
Status TxnPrefetch::make_queues(std::uint64_t file_bytes) {
  drop_reads();
  store_.reset();
  queues_.clear();
  direct_ = cached_ = nullptr;
  file_bytes_ = 0;
  queues_.set_file_bytes(file_bytes);
  const Result<ReadQueue*> cached = queues_.get(gather::ReadKind::told_cached);
  if (!cached) return cached.error();
  cached_ = cached.value();
  if (file_->reads_directly())
    if (const Result<ReadQueue*> direct = queues_.get(gather::ReadKind::told_direct); direct)
      direct_ = direct.value();
  file_bytes_ = file_bytes;
  return {};
}

void TxnPrefetch::count_reads() noexcept {
  const ReadCounts counts = queues_.take_counts();
  counters_.bytes += counts.bytes;
  counters_.requests += counts.requests;
}

// Creates what prefetching needs for the transaction's snapshot.  Returns false if that fails.
bool TxnPrefetch::ready(const Txn& txn) {
  if (forks_ != file_->prefetcher().forks()) after_fork();
  if (!std::exchange(joined_, true)) file_->prefetcher().memory().join(gather::MemoryUse::prefetch);
  const window::WindowView& view = txn.view();
  const std::uint64_t bytes = view.pages() << view.shift();
  if (bytes > file_bytes_) {
    const Result<std::uint64_t> size = file_->file()->base().size();
    if (forks_ != file_->prefetcher().forks()) return false;  // a signal handler has forked meanwhile
    if (!size || !make_queues(std::max(size.value(), bytes)).ok()) return false;
  }
  if (!scratch_) {
    Result<Mapping> made = Mapping::zeroed(kScratches * kScratch);
    if (!made) return false;
    scratch_ = std::move(made).value();
  }
  if (store_ == nullptr) {
    const std::uint64_t most =
        std::clamp(file_->prefetcher().memory().limit() / kTreeShare, kLeastTree, kMostTree);
    if (store_reserved_ == 0 &&
        file_->prefetcher().memory().take(gather::MemoryUse::prefetch, most, gather::Urgency::ahead))
      store_reserved_ = most;
    store_ = std::make_unique<PageStore>(*cached_, view.shift(), view.pages(),
                                         std::max<std::uint64_t>(store_reserved_, kLeastTree),
                                         &file_->residency(), 0, view.version());
  } else if (txnid_ != txn.id() || window_ != txn.stamp().window()) {
    store_->clear(view.pages());
  }
  txnid_ = txn.id();
  window_ = txn.stamp().window();
  return true;
}

// Cancels pending reads and waits for those in flight.
void TxnPrefetch::drop_reads() noexcept {
  arena_.for_each_read([](ValueArena::Read& r) {
    if (!r.group.done()) r.group.status = Status::from_errno(ECANCELED);
  });
  queues_.drop_all();
  groups_.clear();
  (void)forked_here();
}

void TxnPrefetch::end() noexcept {
  if (lost()) return;
  if (forks_ != file_->prefetcher().forks()) after_fork();
  const int saved = errno;
  const Uncancelled wait;
  const AsyncSignalsBlocked fork_safe;
  const Busy busy(busy_);
  drop_reads();
  count_reads();
  table_.clear();
  arena_.clear();
  passed_ = 0;
  forget_pages();
  if (std::exchange(joined_, false)) file_->prefetcher().memory().leave(gather::MemoryUse::prefetch);
  errno = saved;
}

// Keeps pages of trees for a later transaction of the same snapshot, unless ended transactions keep too much
// memory.
void TxnPrefetch::forget_pages() noexcept {
  if (store_reserved_ == 0) return;
  {
    const std::lock_guard lock(file_->prefetcher());
    if (file_->prefetcher().memory().may_keep(gather::MemoryUse::prefetch)) return;
  }
  store_.reset();
  file_->prefetcher().memory().give_back(gather::MemoryUse::prefetch, std::exchange(store_reserved_, 0));
}

// Called after a wait.  Returns true in a child if a signal handler has forked during the wait.
bool TxnPrefetch::forked_here() noexcept {
  if (forks_ == file_->prefetcher().forks()) return false;
  after_fork();
  return true;
}

// Prepares the object for use in a forked child.  The parent's reads do not complete here; data that was read
// before the fork is kept.
void TxnPrefetch::after_fork() noexcept {
  forks_ = file_->prefetcher().forks();
  table_.for_each([](PrefetchedKey& k) {
    const bool there =
        k.kind == Kind::absent || (k.kind == Kind::arena && k.use == k.slab->use && k.at < k.slab->safe);
    if (!there) k.kind = Kind::gone;
  });
  arena_.for_each_read([](ValueArena::Read& r) { r.group.left = 0; });
  arena_.forget_unsafe();
  groups_.clear();
  store_.reset();
  queues_.forget();
  direct_ = cached_ = nullptr;
  file_bytes_ = 0;
  counters_ = {};
  store_reserved_ = 0;  // counted in the parent
  joined_ = false;      // counted in the parent
}

// --- prefetching ---

void TxnPrefetch::add(Txn& txn, MDB_dbi dbi, std::span<const MDB_val> keys) noexcept {
  if (lost()) return;
  const AsyncSignalsBlocked fork_safe;
  const Busy busy(busy_);
  counters_.keys += keys.size();
  try {
    if (!ready(txn)) return;
    const std::optional<format::DbRecord> db = record_of(txn, dbi);
    const format::Comparator& order = txn.env().dbx(dbi).key_order;
    if (!db || db->root == format::kNoPage || order.order == format::Order::user) return;
    const PrefetchedTree tree{dbi, format::raw(db->root), db->flags, order};
    Seen seen;
    const std::size_t from = static_cast<std::size_t>((step_ - skipped_ % step_) % step_);
    find_some(txn, tree, *db, keys, from, step_, seen);
    skipped_ = (skipped_ + keys.size()) % step_;
    if (seen.cold && step_ > 1) find_some(txn, tree, *db, keys, 0, 1, seen);
    if (seen.cold) {
      step_ = 1;
      skipped_ = 0;
    } else if (step_ < kMostStep && seen.any) {
      step_ *= 2;
      skipped_ = 0;
    }
    if (forked_here()) return;
    queues_.pump();
  } catch (...) {  // out of memory: keys not requested yet are left to lookups
  }
  count_reads();
}

// Finds by name the record of a named database that this transaction has not looked up yet.  The
// transaction's own lookup would cause page faults, and it would report damage too early.
std::optional<format::DbRecord> TxnPrefetch::record_of(Txn& txn, MDB_dbi dbi) {
  if (!txn.stale(dbi)) return txn.record_now(dbi);
  const Dbx& slot = txn.env().dbx(dbi);
  if (!slot.named() || *slot.name == '\0') return {};
  const MDB_val name = {format::name_key_bytes(txn.view().version(), std::strlen(slot.name)), slot.name};
  std::optional<format::DbRecord> out;
  (void)find_keys(*store_, txn.record_now(kMainDbi), txn.env().dbx(kMainDbi).key_order, {&name, 1},
                  [&](std::size_t, const KeyPlace& p) {
                    if (p.outcome != KeyPlace::Outcome::found || p.node.flags() != format::kSubData ||
                        p.node.data_size() < sizeof(format::DbRecord))
                      return;
                    const auto found = load<format::DbRecord>(p.node.data());
                    if (found.flags == (txn.record_now(dbi).flags & kPersistentFlags)) out = found;
                  });
  return out;
}

// Looks up keys from, from + step, ... and submits reads of their values.  Sets seen.cold if some data is not
// in the page cache.
void TxnPrefetch::find_some(Txn& txn, const PrefetchedTree& tree, const format::DbRecord& db,
                            std::span<const MDB_val> keys, std::size_t from, std::size_t step, Seen& seen) {
  std::vector<MDB_val> some;
  for (std::size_t i = from; i < keys.size(); i += step) {
    const PrefetchedKey* const old = table_.find(tree, keys[i]);
    if (old == nullptr || old->kind == Kind::gone) some.push_back(keys[i]);
  }
  if (some.empty()) return;
  seen.any = true;
  const std::size_t tree_number = table_.number_of(tree);
  const window::WindowView& view = txn.view();
  const bool dupsort = (db.flags & MDB_DUPSORT) != 0;
  wanted_.clear();
  (void)find_keys(*store_, db, tree.order, some, [&](std::size_t i, const KeyPlace& p) {
    if (p.outcome == KeyPlace::Outcome::absent) {
      table_.add(tree_number, some[i]).kind = Kind::absent;
    } else if (p.outcome == KeyPlace::Outcome::found) {
      if (!p.cached) seen.cold = true;
      const std::uint32_t bytes = p.node.data_size();
      if (dupsort || p.node.flags() != format::kBigData)
        return;  // the value is in the leaf, which is in the page cache by now
      const std::byte* run;
      const std::uint64_t page = format::raw(p.node.overflow());
      if (page < format::kMetaPages || !view.find(p.node.overflow(), bytes, run)) return;
      wanted_.push_back({i, page, bytes});
    }
  });
  counters_.found += wanted_.size();
  const unsigned shift = view.shift();
  std::erase_if(wanted_, [&](const Wanted& w) {
    const std::uint64_t pages = view.overflow_pages(w.bytes);
    const double there =
        file_->residency().share(w.page << shift, pages << shift, txn.view().base()).value_or(0);
    if (there < kMostlyResident) return false;
    ++counters_.cached;
    return true;
  });
  if (wanted_.empty()) return;
  seen.cold = true;
  read_wanted(txn, tree_number, some);
}

void TxnPrefetch::read_wanted(const Txn& txn, std::size_t tree, std::span<const MDB_val> keys) {
  const window::WindowView& view = txn.view();
  std::sort(wanted_.begin(), wanted_.end(), [](const Wanted& a, const Wanted& b) { return a.page < b.page; });
  wanted_.erase(std::unique(wanted_.begin(), wanted_.end(),
                            [&](const Wanted& a, const Wanted& b) {
                              return a.page == b.page && text(keys[a.key]) == text(keys[b.key]);
                            }),
                wanted_.end());
  std::vector<Run> runs;
  std::uint64_t first = 0, next = 0;
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    const Wanted& w = wanted_[i];
    const std::uint64_t end = w.page + view.overflow_pages(w.bytes);
    if (runs.empty() || w.page != next || (end - first) << view.shift() > kMostMerged) {
      runs.push_back({i, 0, w.key});
      first = w.page;
    }
    ++runs.back().count;
    runs.back().key = std::min(runs.back().key, w.key);
    next = end;
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.key < b.key; });
  std::vector<PrefetchedKey*> items;
  for (const Run& r : runs) {
    items.clear();
    for (std::size_t i = r.first; i < r.first + r.count; ++i)
      items.push_back(&table_.add(tree, keys[wanted_[i].key]));
    read_run(r, items, view);
  }
}

void TxnPrefetch::read_run(const Run& run, std::span<PrefetchedKey* const> items,
                           const window::WindowView& view) {
  const Wanted &a = wanted_[run.first], &z = wanted_[run.first + run.count - 1];
  const unsigned shift = view.shift();
  const std::uint64_t offset = a.page << shift;
  const Extent extent{offset, ((z.page + view.overflow_pages(z.bytes)) << shift) - offset};
  if (direct_ != nullptr && file_->to_arena(offset) && read_into_arena(run, items, extent, shift)) return;
  read_into_page_cache(run, items, extent);
}

bool TxnPrefetch::read_into_arena(const Run& run, std::span<PrefetchedKey* const> items, const Extent& extent,
                                  unsigned page_shift) {
  const std::uint64_t start = align_down(extent.offset, ValueArena::kUnit);
  const std::uint64_t end = align_up(extent.offset + extent.bytes, ValueArena::kUnit);
  const auto bytes = static_cast<std::size_t>(end - start);
  ValueArena::Room room = arena_.take(bytes);
  if (room.slab == nullptr && bytes <= window::SlabPool::kSlab && arena_.empty_one(passed_))
    room = arena_.take(bytes);
  if (room.slab == nullptr) return false;
  if (!direct_->add(room.read->group, {start, bytes}, room.slab->memory.data() + room.at).ok()) {
    room.read->group.status = Status::from_errno(ENOMEM);
    return false;
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Wanted& w = wanted_[run.first + i];
    PrefetchedKey& e = *items[i];
    e.kind = Kind::arena;
    e.given_out = false;
    e.bytes = w.bytes;
    e.page = w.page;
    e.slab = room.slab;
    e.use = room.slab->use;
    e.at = room.at + static_cast<std::size_t>((w.page << page_shift) - start);
    e.read = room.read;
    room.slab->newest = std::max(room.slab->newest, e.number);
  }
  counters_.arena += items.size();
  return true;
}

void TxnPrefetch::read_into_page_cache(const Run& run, std::span<PrefetchedKey* const> items,
                                       const Extent& extent) {
  while (!groups_.empty() && groups_.front()->done()) groups_.pop_front();
  groups_.push_back(std::make_shared<ReadGroup>());
  const std::shared_ptr<ReadGroup> group = groups_.back();
  Status st;
  for (std::uint64_t at = extent.offset, end = at + extent.bytes; at < end && st.ok();) {
    const std::uint64_t bytes = std::min<std::uint64_t>(kScratch, end - at);
    st = cached_->add(*group, {at, bytes}, scratch_.data() + kScratch * (next_scratch_++ % kScratches));
    at += bytes;
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    PrefetchedKey& e = *items[i];
    e.kind = Kind::cached;
    e.bytes = wanted_[run.first + i].bytes;
    e.page = wanted_[run.first + i].page;
    e.group = group;
  }
  if (!st.ok()) cached_->drop(*group);
}

}  // namespace lmdbio::tree
