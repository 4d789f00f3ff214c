#include "lmdbio/records/page_reads.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "lmdbio/base/align.h"
#include "lmdbio/base/config.h"
#include "lmdbio/io/read_path.h"
#include "lmdbio/io/residency.h"

namespace lmdbio::records {

using gather::ReadKind;

namespace {

/// Number of pages to probe.  kSamples: if a probe reads nothing.  kDearSamples: if a probe may start
/// read-ahead.
constexpr std::size_t kSamples = 32, kDearSamples = 4;
/// A helper thread needs this many buffers, or the engine's queue depth if that is less.
constexpr std::size_t kLeastSlots = 4;
/// The buffers use huge pages if runs of pages have at least this many bytes on average.
constexpr std::size_t kLargeRun = 64 << 10;

}  // namespace

bool PageReads::in_page_cache(std::span<const WantedPage> wanted) noexcept {
  bool there = false;
  // All probes use one call of with_fd(), which may switch to the thread that owns the descriptor.
  (void)request_.file->base().with_fd([&](int) noexcept { there = samples_are_cached(wanted); });
  return there;
}

bool PageReads::samples_are_cached(std::span<const WantedPage> wanted) noexcept {
  const Residency residency = request_.file->residency(-1);
  const bool dear = std::strcmp(residency.how(), "preadv2") == 0;
  const std::size_t samples = std::min(wanted.size(), dear ? kDearSamples : kSamples);
  double cached = 0;
  for (std::size_t i = 0; i < samples; ++i) {
    const std::uint64_t page = wanted[i * wanted.size() / samples].page;
    const std::optional<double> share =
        residency.share(page * request_.page_size, dear ? 1 : request_.page_size);
    if (!share) return false;
    cached += *share;
  }
  return cached >= kMostlyResident * static_cast<double>(samples);
}

Status PageReads::prepare(std::span<const WantedPage> wanted) noexcept {
  if (const Status st = choose(wanted); !st.ok()) return st;
  // With huge pages, a read of a single page into a small part of a buffer would make the kernel allocate and
  // zero a huge page.
  std::size_t runs = 1;
  for (std::size_t i = 1; i < wanted.size(); ++i) runs += !joins(wanted, i);
  const bool large = wanted.size() / runs * request_.page_size >= kLargeRun;
  (void)::madvise(buffers_.data(), buffers_.size(), large ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  return {};
}

Status PageReads::choose(std::span<const WantedPage> wanted) noexcept {
  ReadFacts facts;
  facts.setting = config().io;
  facts.file_bytes = request_.file_pages * request_.page_size;
  facts.available = request_.available;
  facts.direct_works = true;  // if not, open() fails below
  const ReadDecision decision = choose_read_path(Access::index, facts);
  ReadKind kind = ReadKind::index_direct;
  if (decision.uses_resident && in_page_cache(wanted))
    kind = ReadKind::index_resident;
  else if (decision == ReadPath::page_cache)
    kind = ReadKind::index_cached;
  if (queue_ != nullptr &&
      (kind == kind_ || (kind == ReadKind::index_direct && kind_ == ReadKind::index_cached)))
    return {};
  if (kind == ReadKind::index_direct && open(kind).ok()) return {};
  return open(kind == ReadKind::index_direct ? ReadKind::index_cached : kind);
}

Status PageReads::open(ReadKind kind) noexcept {
  before_ = reads();
  queue_.reset();
  slots_.clear();
  Result<std::unique_ptr<ReadQueue>> made = gather::make_queue(
      kind, *request_.file, request_.file_pages * request_.page_size, request_.make_engine);
  if (!made) return made.error();
  const std::size_t align = made.value()->alignment();
  // Room for at least a page, and for the alignment at both ends.
  const std::size_t room = align_up(std::max(kRequest, request_.page_size), align) + 2 * align;
  std::size_t count = std::max(1u, made.value()->depth());
  const std::size_t spare = align > 4096 ? align : 0;  // mappings begin at a page boundary
  buffers_.reset();
  const std::size_t least = needed_ ? 1 : std::min(count, kLeastSlots);
  for (;; count /= 2) {
    if (count < least) return Status::from_errno(ENOMEM);
    const Urgency urgency = count == 1 ? Urgency::last : Urgency::ahead;
    if (!taken_.take(request_.memory, MemoryUse::index, count * room + spare, urgency, request_.cancelled))
      continue;
    if (Result<Mapping> m = Mapping::zeroed(count * room + spare); m) {
      buffers_ = std::move(m).value();
      break;
    }
  }
  try {
    slots_.resize(count);
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
  queue_ = std::move(made).value();
  kind_ = kind;
  std::byte* at = buffers_.data();
  at += align_up(reinterpret_cast<std::uintptr_t>(at), align) - reinterpret_cast<std::uintptr_t>(at);
  for (Slot& s : slots_) {
    s.buffer = at;
    at += room;
  }
  return {};
}

Status PageReads::start(Slot& slot, std::span<const WantedPage> wanted, std::size_t begin) noexcept {
  const std::size_t page_size = request_.page_size;
  const std::uint64_t first = wanted[begin].page, most = std::max(kRequest / page_size, std::size_t{1});
  std::size_t end = begin + 1;
  while (end < wanted.size() && joins(wanted, end) && wanted[end].page - first < most) ++end;
  const Extent extent{first * page_size, (wanted[end - 1].page - first + 1) * page_size};
  slot.group = {};
  if (const Status st = queue_->add(slot.group, extent, slot.buffer); !st.ok()) return st;
  slot.begin = begin;
  slot.end = end;
  slot.at = slot.buffer + (extent.offset - align_down(extent.offset, queue_->alignment()));
  slot.busy = true;
  return {};
}

void PageReads::drop_all() noexcept {
  for (Slot& s : slots_) {
    if (s.busy) queue_->drop(s.group);
    s.busy = false;
  }
}

IndexReads PageReads::reads() const noexcept {
  IndexReads out = before_;
  if (queue_ == nullptr) return out;
  out.requests += queue_->counters().requests;
  out.bytes += queue_->counters().bytes;
  out.direct = out.direct || queue_->direct();
  return out;
}

}  // namespace lmdbio::records
