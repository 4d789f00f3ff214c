#include "lmdbio/records/fetch.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "lmdbio/base/futex.h"

namespace lmdbio::records {

namespace {

/// Number of extents that are probed to estimate residency.
constexpr std::size_t kSamples = 4;
/// After so many fetches in a row that were in the page cache, one extent of each fetch is probed.
constexpr unsigned kSure = 16;
/// Bytes of a probe.  A larger extent is probed at its beginning, in its middle and at its end, because the
/// kernel's read-ahead for neighbours may have read its beginning or its end.
constexpr std::uint64_t kSampleBytes = std::uint64_t{64} << 10;
/// Largest gap that is read if the server of the node brings the bytes, which takes no delay of a file
/// system.
constexpr std::uint64_t kServedGap = std::uint64_t{16} << 10;

}  // namespace

void Fetch::add(std::uint64_t ordinal, const RecordLocation& location, const Shared& shared) {
  locations_.push_back(location);
  ordinals_.push_back(ordinal);
  const std::size_t page = shared.source.page_size;
  if (location.overflow != 0)
    bytes_ +=
        align_up(format::page_header(shared.source.version) + std::uint64_t{location.value_bytes}, page);
  if (location.dup_leaf != 0) bytes_ += page;
  if (!keeps_leaf(shared, location) && location.leaf != last_leaf_) bytes_ += page;
  last_leaf_ = location.leaf;
}

void Fetch::add_missing() {
  locations_.emplace_back();
  ordinals_.push_back(kNoRecord);
}

// Adds pages to the pages to read.  Ignores pages outside the snapshot; give() reports them as damaged.
void Fetch::want(const Shared& shared, std::uint64_t page, std::uint64_t bytes, std::size_t file) {
  const std::uint64_t pages = (bytes + shared.source.page_size - 1) >> shared.page_shift;
  if (shared.inside(page, pages, file)) wanted_.push_back({shared.offset(page), bytes});
}

void Fetch::plan(Shared& shared, std::uint64_t most) {
  const std::size_t page = shared.source.page_size;
  std::vector<std::uint64_t> leaves;
  std::uint64_t last_kept = 0, last_read = 0, last_dup = 0;
  for (std::size_t i = 0; i < locations_.size(); ++i) {
    if (ordinals_[i] == kNoRecord) continue;
    const RecordLocation& p = locations_[i];
    if (keeps_leaf(shared, p)) {
      if (p.leaf != last_kept) leaves.push_back(p.leaf);
      last_kept = p.leaf;
    } else {
      if (p.leaf != last_read) want(shared, p.leaf, page, p.file);
      last_read = p.leaf;
    }
    if (p.overflow != 0)
      want(shared, p.overflow, format::page_header(shared.source.version) + std::uint64_t{p.value_bytes},
           p.file);
    if (p.dup_leaf != 0 && p.dup_leaf != last_dup) want(shared, p.dup_leaf, page, p.file);
    if (p.dup_leaf != 0) last_dup = p.dup_leaf;
  }
  std::sort(leaves.begin(), leaves.end());
  leaves.erase(std::unique(leaves.begin(), leaves.end()), leaves.end());
  held_.reserve(leaves.size());
  std::vector<bool> here(leaves.size());
  shared.leaves.find(leaves, [&](std::size_t i, const LeafCache::Page& bytes) {
    held_.push_back({leaves[i], bytes});
    here[i] = true;
  });
  shared.counters.leaf_hits += held_.size();
  shared.counters.leaf_misses += leaves.size() - held_.size();
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (here[i]) continue;
    want(shared, leaves[i], page, shared.file_of(leaves[i]));
    new_leaves_.push_back(leaves[i]);
  }
  cached_ = std::all_of(wanted_.begin(), wanted_.end(), [&](const Extent& e) { return shared.keeps(e); }) ||
            (shared.read.uses_resident && in_page_cache(shared));
  wanted_.resize(merge(wanted_, 0));
  const std::uint64_t gap = shared.source.served != nullptr ? kServedGap : kSmallGap;
  gap_ = cached_ ? page : std::max<std::uint64_t>(largest_gap(wanted_, gap, most), page);
  exact_ = wanted_;
  wanted_.resize(merge(wanted_, gap_));
  if (wanted_.size() == exact_.size()) exact_ = {};
}

bool Fetch::plan_less() noexcept {
  if (exact_.empty() || wanted_.empty() || buffer_.size() != 0) return false;
  std::uint64_t now = 0;
  for (const Extent& e : wanted_) now += e.bytes;
  wanted_.assign(exact_.begin(), exact_.end());  // allocates nothing: no more elements than before
  gap_ = largest_gap(wanted_, gap_ / 2, now / 2);
  wanted_.resize(merge(wanted_, gap_));
  if (gap_ == 0) exact_ = {};
  return true;
}

// Estimates from a few samples whether the pages are in the page cache.
bool Fetch::in_page_cache(Shared& shared) const noexcept {
  std::atomic<unsigned>& before = shared.cached_in_a_row;
  const unsigned row = before.load(std::memory_order_relaxed);
  const std::size_t n = std::min(wanted_.size(), row < kSure ? kSamples : 1);
  const std::size_t first = row < kSure ? 0 : row % wanted_.size();
  double least = 1;
  for (std::size_t i = 0; i < n && least >= kMostlyResident; ++i) {
    const Extent& e = wanted_[first + (wanted_.size() - 1) * i / std::max<std::size_t>(n - 1, 1)];
    const std::uint64_t bytes = std::min(e.bytes, kSampleBytes), rest = e.bytes - bytes;
    for (const std::uint64_t at : {std::uint64_t{0}, rest / 2, rest}) {
      least = std::min(least, shared.resident({e.offset + at, bytes}).value_or(0));
      if (rest == 0 || least < kMostlyResident) break;
    }
  }
  const bool cached = least >= kMostlyResident;
  before.store(cached ? row + 1 : 0, std::memory_order_relaxed);
  return cached;
}

Status Fetch::start(Shared& shared, Queues& queues, MemoryRequest& memory) noexcept {
  memory.ahead_in_the_way = memory.others_in_the_way = false;
  own_memory_.count(shared.pool->memory(), MemoryUse::readers, counted_apart(own_bytes()));
  if (wanted_.empty()) return {};
  const bool copies = cached_ && shared.mapped() != nullptr;
  if (copies && may_lend_) {
    if (take_mapped(shared)) return {};
    cached_ = false;  // the reads will report the error
    return start(shared, queues, memory);
  }
  ReadQueue* queue = nullptr;
  if (!copies) {
    const Result<ReadQueue*> got =
        queues.get(!cached_ && !to_page_cache_ && shared.read.path == ReadPath::direct);
    if (!got) return got.error();
    queue = got.value();
  }
  const std::size_t align = copies ? 1 : queue->alignment();
  try {
    stretches_.clear();
    stretches_.reserve(wanted_.size());
    std::size_t room = 0;
    for (const Extent& e : wanted_) {
      // A read starts at an aligned offset, at or before the extent's first byte.
      stretches_.push_back({e, room + static_cast<std::size_t>(e.offset & (align - 1))});
      room += copies ? static_cast<std::size_t>(e.bytes) : queue->room(e);
    }
    Result<Buffer> taken = shared.pool->take(room, memory);
    if (!taken) return taken.error();
    buffer_ = std::move(taken).value();
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
  if (copies) {
    if (copy(shared)) return {};
    cached_ = false;  // the reads will report the error
    buffer_ = {};
    return start(shared, queues, memory);
  }
  std::uint64_t needed = 0, requests = 0;
  for (const Stretch& s : stretches_) {
    if (copy_kept(shared, s)) continue;
    const Status st = queue->add(group_, s.extent, buffer_.data() + align_down(s.at, align));
    needed += s.extent.bytes;
    requests += (s.extent.bytes + ReadQueue::kMostRequest - 1) / ReadQueue::kMostRequest;
    queue_ = queue;
    if (st.ok()) continue;
    queue_ = nullptr;
    queue->drop(group_);
    group_ = {};
    buffer_ = {};
    return st;
  }
  exact_ = {};
  if (shared.source.kept != nullptr && requests != 0) shared.source.kept->need(needed, requests);
  return {};
}

// Copies what the process keeps of the file.  Returns false if it does not keep all of the extent.
bool Fetch::copy_kept(Shared& shared, const Stretch& s) noexcept {
  if (!shared.keeps(s.extent) || s.extent.offset + s.extent.bytes > shared.file_bytes()) return false;
  std::memcpy(buffer_.data() + s.at, shared.source.kept->mapped() + s.extent.offset,
              static_cast<std::size_t>(s.extent.bytes));
  shared.counters.bytes_copied += s.extent.bytes;
  return true;
}

// Calls `check` with the number of each file and with the stretches in it, until it returns false.  Returns
// its last result.
template <class Check>
bool Fetch::each_file(const Shared& shared, Check&& check) const noexcept {
  const std::span<const Stretch> all(stretches_);
  if (shared.source.joined == nullptr) return check(std::size_t{0}, all);
  const FileSet& files = shared.source.joined->files;
  for (std::size_t i = 0, file = 0; i < all.size();) {
    file = files.at(all[i].extent.offset, file);
    const std::size_t first = i++;
    const std::uint64_t end = file + 1 < files.size() ? files.first(file + 1) : files.bytes();
    while (i < all.size() && all[i].extent.offset < end) ++i;
    if (!check(file, all.subspan(first, i - first))) return false;
  }
  return true;
}

bool Fetch::reaches_all(Shared& shared) const noexcept {
  const std::int64_t now = now_ns();
  return each_file(shared, [&](std::size_t file, std::span<const Stretch> in_file) {
    return shared.reaches(file, in_file.back().extent, now);
  });
}

// Returns true if no file has changed, for data that was copied from the mapping or is lent.
bool Fetch::unchanged(Shared& shared) const noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // after the reads of the data
  return each_file(shared, [&](std::size_t file, auto) { return shared.mapping_unchanged(file); });
}

void Fetch::fault_in(Shared& shared) const noexcept {
  (void)each_file(shared, [&](std::size_t file, std::span<const Stretch> in_file) {
    for (const Stretch& s : in_file) shared.fault_in(file, s.extent);
    return true;
  });
}

bool Fetch::still_lent(Shared& shared) const noexcept { return reaches_all(shared) && unchanged(shared); }

std::optional<std::size_t> Fetch::failed_database(Shared& shared, Status st) const noexcept {
  if (shared.source.joined == nullptr) return {};
  std::optional<std::size_t> failed;
  (void)each_file(shared, [&](std::size_t file, auto) {
    if (st.raw() == ESTALE ? !shared.unchanged(file) : shared.source.joined->files.error(file) == st.raw())
      failed = file;
    return !failed;
  });
  return failed;
}

// Lends the file's mapping.  Returns false if the file has become shorter, or if there is no memory.
bool Fetch::take_mapped(Shared& shared) noexcept {
  std::uint64_t bytes = 0;
  try {
    stretches_.clear();
    stretches_.reserve(wanted_.size());
    for (const Extent& e : wanted_) {
      stretches_.push_back({e, static_cast<std::size_t>(e.offset)});
      bytes += e.bytes;
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
  if (!still_lent(shared)) return false;
  lent_ = shared.mapped();
  fault_in(shared);
  // give() reads the header of each value.  Requesting them all here overlaps the waits for memory.
  for (const Stretch& s : stretches_) __builtin_prefetch(lent_ + s.extent.offset);
  shared.counters.bytes_copied += bytes;
  return true;
}

// Copies the data from the mapping.  For small extents that are spread over the file, this takes half the
// time of reads.  Returns false if the file has become shorter.
bool Fetch::copy(Shared& shared) noexcept {
  if (!reaches_all(shared)) return false;
  fault_in(shared);
  const std::byte* const file = shared.mapped();
  std::uint64_t bytes = 0;
  for (const Stretch& s : stretches_) {
    std::memcpy(buffer_.data() + s.at, file + s.extent.offset, static_cast<std::size_t>(s.extent.bytes));
    bytes += s.extent.bytes;
  }
  shared.counters.bytes_copied += bytes;
  return true;
}

Status Fetch::finish(Shared& shared) noexcept {
  if (shared.source.joined != nullptr && !lends() &&  // still_lent() checks lent data
      !(queue_ == nullptr ? unchanged(shared) : each_file(shared, [&](std::size_t file, auto) {
        return shared.unchanged(file);
      })))
    return Status::from_errno(ESTALE);
  for (const std::uint64_t page : new_leaves_)
    if (const std::byte* const bytes = find(shared.offset(page), shared.source.page_size); bytes != nullptr)
      shared.leaves.keep(page, bytes);
  new_leaves_ = {};
  wanted_ = {};
  exact_ = {};
  return {};
}

// Returns the address of the file's bytes from `offset` on, or nullptr if they were not read.
const std::byte* Fetch::find(std::uint64_t offset, std::uint64_t bytes) noexcept {
  const auto holds = [&](std::size_t i) {
    const Extent& e = stretches_[i].extent;
    return offset >= e.offset && offset - e.offset <= e.bytes && bytes <= e.bytes - (offset - e.offset);
  };
  if (stretches_.empty()) return nullptr;
  if (!holds(last_stretch_)) {
    const auto after =
        std::upper_bound(stretches_.begin(), stretches_.end(), offset,
                         [](std::uint64_t o, const Stretch& s) { return o < s.extent.offset; });
    if (after == stretches_.begin()) return nullptr;
    last_stretch_ = static_cast<std::size_t>(after - stretches_.begin()) - 1;
    if (!holds(last_stretch_)) return nullptr;
  }
  const Stretch& s = stretches_[last_stretch_];
  return (lent_ != nullptr ? lent_ : buffer_.data()) + s.at + (offset - s.extent.offset);
}

const std::byte* Fetch::leaf_bytes(const Shared& shared, std::uint64_t page, std::size_t file) noexcept {
  const auto held = std::lower_bound(held_.begin(), held_.end(), page,
                                     [](const Held& h, std::uint64_t p) { return h.page < p; });
  if (held != held_.end() && held->page == page) return held->bytes.get();
  return shared.inside(page, 1, file) ? find(shared.offset(page), shared.source.page_size) : nullptr;
}

bool Fetch::open_leaf(const Shared& shared, std::uint64_t page, std::size_t file,
                      format::PageView& view) noexcept {
  const std::byte* const bytes = leaf_bytes(shared, page, file);
  return bytes != nullptr &&
         format::PageView::open(shared.source.version, bytes, shared.source.page_size,
                                format::Pgno{shared.page_in_file(page, file)}, view) &&
         view.is_leaf();
}

Status Fetch::give(const Shared& shared, std::size_t i, lmdbio_record& out,
                   std::uint64_t& bad_page) noexcept {
  const auto corrupted = [&](std::uint64_t page) {
    bad_page = page;
    return Status::from_mdb(MDB_CORRUPTED);
  };
  out.ordinal = ordinals_[i];
  out.key = out.value = {0, nullptr};
  if (out.ordinal == kNoRecord) return {};
  const RecordLocation& p = locations_[i];
  if (p.leaf != open_page_ || open_page_ == 0) {
    open_page_ = 0;
    if (!open_leaf(shared, p.leaf, p.file, leaf_)) return corrupted(p.leaf);
    open_page_ = p.leaf;
  }
  format::PageView dup = format::PageView::none();
  if (p.dup_leaf != 0 && !open_leaf(shared, p.dup_leaf, p.file, dup))
    return corrupted(shared.inside(p.dup_leaf, 1, p.file) ? p.dup_leaf : p.leaf);
  RecordLocation in_file = p;
  if (p.overflow != 0) in_file.overflow = shared.page_in_file(p.overflow, p.file);
  Bytes key, value;
  if (const Status st = extract_record(in_file, leaf_, p.dup_leaf != 0 ? &dup : nullptr, key, value);
      !st.ok())
    return corrupted(p.leaf);
  if (p.overflow != 0) {
    const format::Version version = shared.source.version;
    const std::uint64_t bytes = format::page_header(version) + std::uint64_t{p.value_bytes};
    const std::uint64_t pages = format::overflow_pages(version, p.value_bytes, shared.page_shift);
    const std::byte* const run =
        shared.inside(p.overflow, pages, p.file) ? find(shared.offset(p.overflow), bytes) : nullptr;
    if (run == nullptr || load<std::uint64_t>(run) != in_file.overflow ||
        (load<std::uint16_t>(run + format::at_flags(version)) & format::kOverflow) == 0 ||
        load<std::uint32_t>(run + format::at_pages(version)) < pages)
      return corrupted(p.overflow);
    value = {run + format::page_header(version), p.value_bytes};
  }
  out.key = {key.size(), const_cast<std::byte*>(key.data())};
  out.value = {value.size(), const_cast<std::byte*>(value.data())};
  return {};
}

}  // namespace lmdbio::records
