#include "lmdbio/records/shared.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "lmdbio/base/align.h"
#include "lmdbio/io/page_filler.h"

namespace lmdbio::records {

namespace {

/// Leaf pages may take one kLeafShare-th of a reader's memory.
constexpr std::uint64_t kLeafShare = 16;
/// Sizes for fault_in(), in bytes.  An extent of kLarge or more does not need fault_in(), because at each
/// page fault the kernel also maps the resident pages around the faulting one.  Smaller extents are spread
/// over the file.
constexpr std::uint64_t kLarge = std::uint64_t{64} << 10, kRegion = std::uint64_t{512} << 10;
/// A region is mapped when so many small extents of it were used.  A rank with a share of the records uses
/// few extents of a region, and the kernel's mapping around page faults suffices.
constexpr std::uint64_t kMapped = 3, kRegionBits = 2, kRegions = 64 / kRegionBits;

}  // namespace

Shared::Shared(Source from, std::uint64_t memory, ReadDecision how, std::shared_ptr<Memory> process)
    : source(std::move(from)),
      page_shift(static_cast<unsigned>(std::countr_zero(source.page_size))),
      read(how),
      residency(source.file->residency(source.programs_fd)),
      pool(std::make_shared<BufferPool>(memory - memory / kLeafShare, std::move(process))),
      keeps_all_leaves(source.db.leaf_pages <= memory / kLeafShare / LeafCache::cost(source.page_size)),
      leaves(source.page_size,
             static_cast<std::size_t>(memory / kLeafShare / LeafCache::cost(source.page_size)),
             pool->memory()),
      shown({node::CellKind::reader, 0, source.file->identity().dev, source.file->identity().ino}),
      id_(source.file->identity()) {}

std::uint64_t Shared::share_of_one(unsigned n) const noexcept {
  const auto own = streams.load(std::memory_order_relaxed) + n;
  const auto all = memory().streams.load(std::memory_order_relaxed) + n;
  return std::min(pool->limit() / std::max(own, 1u), memory().limit() / std::max(all, 1u));
}

std::uint64_t Shared::file_bytes() const noexcept {
  if (const auto known = size_if_inode(source.programs_fd, id_); known) return *known;
  std::uint64_t bytes = 0;
  (void)source.base().with_fd([&bytes](int fd) noexcept { bytes = size_known_here(fd); });
  return bytes;
}

const std::byte* Shared::mapped() noexcept {
  if (source.kept != nullptr) return source.kept->mapped();
  std::call_once(map_once_, [this]() noexcept {
    if (source.joined != nullptr) {
      Result<Mapping> made = Mapping::reserve(offset(source.pages), kHugePage);
      if (made) map_ = std::move(made).value();
    } else {
      (void)source.base().with_fd([this](int fd) noexcept {
        Result<Mapping> made = Mapping::map_file(fd, offset(source.pages), kHugePage);
        if (made) map_ = std::move(made).value();
      });
    }
    try {
      faulted_in_ = zeroed_array<std::uint64_t>(map_.size() / kRegion / kRegions + 1);
    } catch (const std::bad_alloc&) {
    }
  });
  return map_.data();
}

bool Shared::reaches(std::size_t file, const Extent& extent, std::int64_t now) noexcept {
  const std::uint64_t end = extent.offset + extent.bytes;
  if (source.joined == nullptr) return end <= file_bytes();
  FileSet& files = source.joined->files;
  return end - files.first(file) <= files.recent_length(file, now) && map(file);
}

// Two threads may map the file at the same time, which changes nothing for readers of the mapping.
bool Shared::map(std::size_t file) noexcept {
  FileSet& files = source.joined->files;
  return files.mapped(file) != nullptr ||
         (mapped() != nullptr && files.map(file, map_.data() + files.first(file)));
}

bool Shared::mapping_unchanged(std::size_t file) const noexcept {
  if (source.joined == nullptr) return true;
  const std::byte* const metas = source.joined->files.mapped(file);
  const auto txnid = [&](std::size_t page) {
    return __atomic_load_n(
        reinterpret_cast<const std::uint64_t*>(metas + page * source.page_size + at_txnid(source.version)),
        __ATOMIC_RELAXED);
  };
  return std::max(txnid(0), txnid(1)) == source.joined->all[file].txnid;
}

bool Shared::unchanged(std::size_t file) noexcept {
  if (source.joined == nullptr) return true;
  Databases& d = *source.joined;
  // The fault reads the pages if necessary.  It fails, where a memory access would raise a signal, if the
  // file is shorter now or if the read fails.
  if (!map(file) || !fault_pages_in(map_.data() + d.files.first(file), format::kMetaPages * source.page_size))
    return d.unchanged(file);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return mapping_unchanged(file);
}

void Shared::fault_in(std::size_t file, const Extent& extent) noexcept {
  if (faulted_in_ == nullptr || extent.bytes == 0 || extent.bytes >= kLarge) return;
  const std::uint64_t last = (extent.offset + extent.bytes - 1) / kRegion;
  for (std::uint64_t r = extent.offset / kRegion; r <= last && r * kRegion < map_.size(); ++r) {
    const std::atomic_ref bits(faulted_in_[r / kRegions]);
    const std::uint64_t at = r % kRegions * kRegionBits, one = std::uint64_t{1} << at;
    std::uint64_t seen = bits.load(std::memory_order_relaxed);
    const std::uint64_t calls = seen >> at & kMapped;
    if (calls == kMapped) continue;
    if (calls + 1 != kMapped) {  // a call that another thread disturbs does not count
      (void)bits.compare_exchange_strong(seen, seen + one, std::memory_order_relaxed);
      continue;
    }
    std::uint64_t bytes = std::min<std::uint64_t>(kRegion, map_.size() - r * kRegion);
    if (source.joined != nullptr) {  // addresses between files are not mapped
      const FileSet& files = source.joined->files;
      bytes = std::min(bytes, files.first(file) + files.part(file).bytes - r * kRegion);
      if (!files.is_resident(file, r * kRegion, bytes)) continue;
    } else if (residency.share(r * kRegion, bytes) != 1.0) {
      continue;
    }
    (void)fault_pages_in(map_.data() + r * kRegion, bytes);
    bits.fetch_or(kMapped << at, std::memory_order_relaxed);
  }
}

Queues::Queues(Shared& shared) noexcept
    : gather::Queues(shared.source.file, shared.source.make_engine), shared_(shared) {
  set_file_bytes(shared.offset(shared.source.pages));
}

// Reads through the page cache use a descriptor without the kernel's read-ahead.  Read-ahead would
// read data after a record, which usually another rank reads, too.  Reads of the same pages wait for each
// other.
Result<ReadQueue*> Queues::get(bool direct) noexcept {
  using gather::ReadKind;
  const bool past = direct && shared_.source.direct() != nullptr;
  const Result<ReadQueue*> queue =
      gather::Queues::get(past                          ? ReadKind::record_direct
                          : shared_.source.reads_around ? ReadKind::record_filled
                                                        : ReadKind::record_cached);
  // EBADF: this forked child could not open the file again.  Report EIO instead, since the program does not
  // know the descriptor.
  if (!queue && queue.error().raw() == EBADF) return Status::from_errno(EIO);
  return queue;
}

void Queues::count() noexcept {
  const ReadCounts counts = take_counts();
  shared_.counters.bytes_read += counts.bytes;
  shared_.counters.requests += counts.requests;
  if (cache::Image* const image = shared_.source.image.get(); image != nullptr)
    image->count_into(shared_.counters, shared_.source.is_image ? counts.bytes : 0);
  if (shared_.source.served != nullptr) shared_.source.served->count_into(shared_.counters);
}

}  // namespace lmdbio::records
