#include "lmdbio/ahead/lookups.h"

#include <algorithm>
#include <cerrno>

#include "lmdbio/ahead/file_policy.h"
#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/base/memory_facts.h"
#include "lmdbio/base/uncancelled.h"
#include "lmdbio/format/search.h"
#include "lmdbio/window/prefetcher.h"

namespace lmdbio::ahead {

using window::Prefetcher;

namespace {

/// Fallback where no call reports residency: a read of a resident page takes less than kReadNs, plus 1 ns
/// for each kBytesANs bytes.
constexpr std::int64_t kReadNs = 40'000, kBytesANs = 4;
/// Upper limit on the time that another thread usually needs to do a task and to answer, in ns.
constexpr std::int64_t kOtherThreadNs = 40'000;
/// Limits on the size of a piece, in bytes.  A value of more than two pieces is read by several requests at
/// a time.
constexpr std::uint64_t kLeastPiece = std::uint64_t{128} << 10, kMostPiece = std::uint64_t{1} << 20;
/// Upper limit on the bytes read of one value.  Page faults read the rest of a larger value.
constexpr std::uint64_t kMostValue = std::uint64_t{64} << 20;
/// Upper limits for a list of leaf pages: pages of one level, and lookups until the list is complete.
constexpr std::uint64_t kMostLeaves = std::uint64_t{1} << 20;
constexpr unsigned kMostWaits = 4096;

}  // namespace

/// Provides the pages that are in memory, for the list of leaf pages.
class Lookups::Pages final : public PageSource {
 public:
  Pages(Lookups& of, const window::WindowView& view) : of_(of), view_(view) {}
  bool get(std::uint64_t page, format::PageView& out) override {
    if (page >= view_.pages() || page < format::kMetaPages) return false;
    const std::uint64_t at = page << view_.shift();
    if (!of_.there(view_, at, view_.page_size())) return false;
    // After a failed read, a page in the page cache may lack its bytes.  read(2) reports this as an error.
    if (of_.file_ != nullptr && !of_.file_->resident_now(of_.file_->chunk_at(at)) &&
        of_.file_->read_failed.load(std::memory_order_relaxed) && !of_.env_->time_read(at, view_))
      return false;
    if (of_.file_ != nullptr && Prefetcher::existing()->is_reading(*of_.file_, {at, view_.page_size()}))
      return false;
    const std::byte* const bytes = view_.at(format::Pgno{page});
    return bytes != nullptr &&
           format::PageView::open(view_.version(), bytes, view_.page_size(), format::Pgno{page}, out);
  }

 private:
  Lookups& of_;
  const window::WindowView& view_;
};

Lookups::~Lookups() { forget(); }

void Lookups::forget() noexcept {
  const AsyncSignalsBlocked fork_safe(has_own_threads());
  for (std::unique_ptr<window::Walk>* const w : {&leaf_walk_, &value_walk_}) {
    if (*w != nullptr) Prefetcher::existing()->remove(**w);
    w->reset();
  }
  needs_.forget();
  walk_.forget();
  file_.reset();
  known_ = {};
  lister_.forget();
  listing_ = 0;
}

std::uint32_t Lookups::before(const Source& source, const Lookup& lookup) noexcept {
  if (off_ && source.window == window_) return kNever;
  const int saved = errno;
  const Uncancelled wait;
  const AsyncSignalsBlocked fork_safe;
  if (source.window != window_) {
    forget();
    window_ = source.window;
    off_ = !env_->reads_ahead() || env_->unmapped();
  }
  bool missed = false;
  covered_ = within_ = 0;
  edge_ = false;
  try {
    if (!off_) missed = prepare(source, lookup);
  } catch (...) {  // out of memory: page faults read the data
  }
  errno = saved;
  if (off_) return kNever;
  std::uint32_t next = std::max(sensor_.asked(missed, edge_), covered_ + 1);
  if (within_ != 0) next = std::min(next, within_);
  // What is loaded from the cache on local disk does not reach the page cache, where page faults would find
  // it.
  if (file_ != nullptr && file_->load.path == ReadPath::direct && file_->reads_through_sources()) next = 1;
  walk_.skip(next - 1);
  return next;
}

// Follows the lookup's path through the tree.  Probes each page before it reads the page.  Returns true if
// something was missing, or if the lookup belongs to a walk that is being prefetched.
bool Lookups::prepare(const Source& source, const Lookup& lookup) {
  const format::DbRecord& db = lookup.db;
  const window::WindowView& view = source.view;
  const std::uint64_t page_bytes = view.page_size();
  if (listing_ != 0) {
    if (listing_ == source.txnid)
      go_on_listing(view);
    else
      listing_ = 0;
  }
  bool missed = false, far = false;
  std::uint64_t missed_at = 0;
  taken_ = {};
  const auto need = [&](std::uint64_t at, std::uint64_t bytes, LookupOrder* lookups) {
    const bool near = lookups != nullptr &&
                      lookups->near(at, bytes, file_ != nullptr ? file_->readahead : 0) &&
                      !env_->no_readahead();  // the kernel does no read-around
    if (there(view, at, bytes)) return true;
    missed = true;
    missed_at = at;
    if (!near && lookups != nullptr) far = true;
    if (near) return true;
    const Extent piece =
        around_ && lookups == &values_ ? around(at, bytes, view.pages() << view.shift()) : Extent{at, bytes};
    return bring(view, piece.offset, piece.bytes);
  };

  format::PageView page;
  format::Place place;
  std::array<format::PageView, format::kMaxDepth> branches;
  std::array<std::uint16_t, format::kMaxDepth> taken_in{};
  WalkPlace way;
  way.values = db.overflow_pages != 0;
  way.value_pages = db.entries != 0 ? db.overflow_pages / db.entries : 0;
  way.given_bytes = source.given_bytes;
  bool walks = false;
  way.forward = walk_.forward();
  std::uint64_t p = format::raw(db.root);
  unsigned level = 1;
  for (;; ++level) {
    if (level > format::kMaxDepth || p >= view.pages() || p < format::kMetaPages) return missed;
    const bool leaf = level >= db.depth;
    std::uint64_t& known = known_[p % known_.size()];
    if (leaf) {
      way.branches = {branches.data(), level - 1};
      way.taken = {taken_in.data(), level - 1};
      walks = walk_.has(format::raw(db.root), way.taken) && is_worth_walking(way, p, view);
    }
    if (walks) {
      if (!walk_.bring(way, {p, 1}, view)) return true;
    } else if (leaf || known != p) {
      if (!need(p << view.shift(), page_bytes, leaf ? &leaves_ : nullptr)) return missed;
      if (!leaf) known = p;
    }
    const std::byte* const bytes = view.at(format::Pgno{p});
    if (bytes == nullptr ||
        !format::PageView::open(view.version(), bytes, page_bytes, format::Pgno{p}, page) ||
        page.is_leaf2() || page.count() == 0 ||
        !format::search_page(page, lookup.order, lookup.key, 0, place))
      return missed;
    if (page.is_leaf()) break;
    const unsigned taken = place.exact ? place.index : place.index - 1;
    format::Node node;
    if (taken >= page.count() || !page.node(taken, node)) return missed;
    branches[level - 1] = page;
    taken_in[level - 1] = static_cast<std::uint16_t>(taken);
    p = format::raw(node.child());
  }
  way.leaf = page;
  way.index = place.index;
  std::uint64_t last = p << view.shift();
  format::Node node;
  if ((place.exact || lookup.or_next) && place.index < page.count() && page.node(place.index, node) &&
      (node.flags() & format::kBigData) != 0) {
    const std::uint64_t first = format::raw(node.overflow());
    const std::uint64_t pages = view.overflow_pages(node.data_size());
    if (first < view.pages() && pages <= view.pages() - first) {
      last = first << view.shift();
      if (walks)
        (void)walk_.bring(way, {first, std::min(pages, kMostValue >> view.shift())}, view);
      else
        (void)need(first << view.shift(), std::min(pages << view.shift(), kMostValue), &values_);
    }
  }
  walk_.came_to(format::raw(db.root), way);
  if (walks) {
    covered_ = walk_.covered(way, view);
    if (!walk_.is_streaming()) within_ = walk_.ask_within(way, view);
    return walk_.is_streaming();
  }
  if (!missed && sensor_.wants_edge()) edge_ = is_edge(view, last);
  if (!missed || file_ == nullptr) return missed;
  // A chunk that was taken stands for lookups all over it.
  const std::uint64_t used = view.pages() << view.shift(), part = used / 64 + 1;
  std::uint64_t misses = 0, at = taken_.bytes != 0 ? taken_.offset : missed_at;
  do {
    misses = lookup_missed(*file_, source.txnid, at, used, far || taken_.bytes != 0);
    at += part;
  } while (at < taken_.offset + taken_.bytes);
  around_ = !file_->local && misses >= window::MissRecord::kMisses;
  if (misses != 0 && listing_ == 0 && taken_.bytes == 0) fetch_leaves(source, db, misses);
  return true;
}

// Returns whether to read ahead like a walk, which also reads the values between one lookup and the next.
// Returns true if these values are small, or if other processes use them.
bool Lookups::is_worth_walking(const WalkPlace& way, std::uint64_t leaf,
                               const window::WindowView& view) const noexcept {
  constexpr std::uint64_t kMostBetween = std::uint64_t{128} << 10;
  const std::uint64_t between = (walk_.width() - 1) * std::min(way.value_pages, view.pages()) << view.shift();
  return between <= kMostBetween ||
         (file_ != nullptr &&
          StrideWalk::is_shared(*file_, file_->chunk_at(leaf << view.shift()), 1000 / walk_.width()));
}

// Returns true if all of the range is in memory, or seems to be.
bool Lookups::there(const window::WindowView& view, std::uint64_t at, std::uint64_t bytes) noexcept {
  if (file_ != nullptr && file_->resident_now(file_->chunk_at(at)) &&
      file_->resident_now(file_->chunk_at(at + bytes - 1)))
    return true;
  if (const std::optional<double> share = env_->cached_share(at, bytes, view); share) return *share >= 1;
  // No call reports residency to this user, so the time of a read decides.  The read also reads what is
  // missing.  After recent misses it covers the whole range in one request.
  if (!sensor_.cold() || file_ == nullptr) return env_->time_read(at, view).value_or(kReadNs) < kReadNs;
  const std::int64_t begun = now_ns();
  (void)read_exactly(at, bytes);
  return now_ns() - begun < kReadNs + kOtherThreadNs + static_cast<std::int64_t>(bytes) / kBytesANs;
}

// Returns true if the data half a MiB after `at` is not in memory.  The caller has found the data at `at` in
// memory.  In this case the kernel may be reading ahead of lookups in order, whose data looks resident while
// it is still being read.
bool Lookups::is_edge(const window::WindowView& view, std::uint64_t at) noexcept {
  constexpr std::uint64_t kBeyond = std::uint64_t{512} << 10, kBytes = std::uint64_t{64} << 10;
  const std::uint64_t end = view.pages() << view.shift();
  if (end < kBytes || end - kBytes < kBeyond || at > end - kBytes - kBeyond) return false;
  return env_->cached_share(at + kBeyond, kBytes, view).value_or(1) < kMostlyResident;
}

// Returns the extent to read for a small value on remote storage: as many bytes as the kernel would read
// around it.  A small request takes as long as a larger one, and later lookups may need the data around the
// value.
Extent Lookups::around(std::uint64_t at, std::uint64_t bytes, std::uint64_t file_bytes) const noexcept {
  const std::uint64_t piece = std::min(file_->readahead, kLeastPiece);
  if (bytes > piece / 2) return {at, bytes};
  const std::uint64_t before = (piece - bytes) / 2 & ~std::uint64_t{4095};
  const std::uint64_t from = at > before ? at - before : 0;
  return {from, std::min(piece, file_bytes - from)};
}

// Reads the range and waits for it.  Returns false if the lookup's own page faults must read it.
bool Lookups::bring(const window::WindowView& view, std::uint64_t at, std::uint64_t bytes) {
  if (!open_file(view)) return false;
  if (take_chunks({at, bytes}, view.pages() << view.shift())) return true;
  // Other threads read further pieces in the meantime.  This thread waits for pieces that are being read, and
  // skips pieces that have been read.
  const std::uint64_t piece = std::clamp(file_->readahead, kLeastPiece, kMostPiece);
  if (bytes > 2 * piece) {
    if (value_walk_ == nullptr) value_walk_ = std::make_unique<window::Walk>(file_);
    extents_.clear();
    for (std::uint64_t more = piece; more < bytes; more += piece)
      extents_.push_back({at + more, std::min(piece, bytes - more)});
    (void)Prefetcher::existing()->submit(*value_walk_, {{}, extents_, {}, {}});
  }
  const std::int64_t begun = now_ns();
  const Status st = read_exactly(at, bytes);
  if (!st.ok() && st.raw() != EBADF) file_->read_failed.store(true, std::memory_order_relaxed);
  if (!st.ok()) return false;
  const auto waited = static_cast<std::uint64_t>(now_ns() - begun);
  ++file_->stats.exact_reads;
  file_->stats.exact_bytes += bytes;
  file_->stats.exact_ns += waited;
  file_->lookups.note_wait(waited);
  return true;
}

// Waits for the chunks with the bytes of the extent if the cache on local disk has them.  Returns whether
// they are resident.
bool Lookups::take_chunks(const Extent& extent, std::uint64_t used_bytes) {
  Prefetcher& prefetcher = *Prefetcher::existing();
  const window::ChunkRange needed{file_->chunk_at(extent.offset),
                                  file_->chunk_at(extent.offset + extent.bytes - 1)};
  if (!prefetcher.takes_chunks_from_cache(*file_, needed, used_bytes)) return false;
  if (value_walk_ == nullptr) value_walk_ = std::make_unique<window::Walk>(file_);
  chunks_.clear();
  for (std::uint32_t c = raw(needed.first); c <= raw(needed.last); ++c)
    chunks_.push_back(window::ChunkIndex{c});
  const std::int64_t begun = now_ns();
  if (!prefetcher.wait(prefetcher.submit(*value_walk_, {chunks_, {}, needed, {}})).ok()) return false;
  file_->lookups.note_wait(static_cast<std::uint64_t>(now_ns() - begun));
  if (!std::all_of(chunks_.begin(), chunks_.end(), [this](auto c) { return file_->resident_now(c); }))
    return false;
  taken_ = {file_->offset(needed.first), chunks_.size() * file_->chunk_bytes};
  return true;
}

Status Lookups::read_exactly(std::uint64_t at, std::uint64_t bytes) noexcept {
  return env_->bring(needs_, *file_, at, bytes);
}

bool Lookups::open_file(const window::WindowView& view) noexcept {
  if (file_ != nullptr) return true;
  file_ = env_->window_file(view.pages());
  if (file_ != nullptr && file_->file()->exact() != nullptr) return true;
  file_.reset();
  off_ = true;
  return false;
}

// Fetches all leaf pages of the tree if they are few enough.
void Lookups::fetch_leaves(const Source& source, const format::DbRecord& db, std::uint64_t misses) {
  if (db.depth < 2 || db.depth > format::kMaxDepth || db.leaf_pages > kMostLeaves ||
      !window::worth_all_leaves(misses, db.leaf_pages, 0, ~std::uint64_t{0}))
    return;
  if (file_->users == 0 || !file_->lookups.claim_leaves(source.txnid)) return;
  if (!window::worth_all_leaves(misses, db.leaf_pages, db.leaf_pages << source.view.shift(),
                                memory_facts().available))
    return;
  lister_.start(format::raw(db.root), db.depth, db.leaf_pages);
  listing_ = source.txnid;
  waits_ = 0;
  if (leaf_walk_ == nullptr) leaf_walk_ = std::make_unique<window::Walk>(file_);
  go_on_listing(source.view);
}

void Lookups::go_on_listing(const window::WindowView& view) {
  Pages pages(*this, view);
  const LeafLister::Step step = lister_.go_on(pages, missing_);
  const std::vector<std::uint64_t>& wanted = step == LeafLister::Step::done ? lister_.leaves() : missing_;
  extents_.clear();
  if (step != LeafLister::Step::given_up) {
    for (const std::uint64_t p : wanted)
      if (p < view.pages()) extents_.push_back({p << view.shift(), view.page_size()});
    extents_.resize(merge(extents_, 0));
    if (!extents_.empty()) (void)Prefetcher::existing()->submit(*leaf_walk_, {{}, extents_, {}, {}});
  }
  if (step == LeafLister::Step::done) file_->stats.leaves_fetched += wanted.size();
  if (step == LeafLister::Step::wait && ++waits_ < kMostWaits) return;
  listing_ = 0;
  lister_.forget();
}

}  // namespace lmdbio::ahead
