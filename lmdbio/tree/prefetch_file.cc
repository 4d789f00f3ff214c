#include "lmdbio/tree/prefetch_file.h"

#include <utility>

#include "lmdbio/base/config.h"
#include "lmdbio/base/memory_facts.h"
#include "lmdbio/window/prefetcher.h"

namespace lmdbio::tree {

PrefetchFile::PrefetchFile(window::Prefetcher& prefetcher, std::shared_ptr<const OpenFile> file,
                           bool reads_directly, int programs_fd, ReadPath path, std::uint64_t bytes)
    : prefetcher_(prefetcher),
      file_(std::move(file)),
      reads_directly_(reads_directly),
      residency_(file_->residency(programs_fd, Residency::Sampling::no)),
      path_(path),
      slabs_(prefetcher) {
  if (path_ != ReadPath::direct_once) return;
  pieces_ = static_cast<std::size_t>(bytes >> kPieceShift) + 1;
  read_ = std::make_unique<std::atomic<std::uint64_t>[]>(pieces_ / 64 + 1);
}

std::shared_ptr<PrefetchFile> PrefetchFile::open(const Origin& origin, std::uint64_t used_bytes) noexcept {
  if (origin.fd < 0) return nullptr;
  window::Prefetcher* const prefetcher = window::Prefetcher::get();
  if (prefetcher == nullptr) return nullptr;
  ReadFacts facts;
  facts.setting = config().io;
  facts.memory_limit = prefetcher->memory().limit();
  const bool wants_direct = may_read_directly(facts.setting, facts.memory_limit);
  Result<std::shared_ptr<const OpenFile>> opened =
      OpenFile::get(origin, wants_direct ? OpenFile::With::direct : OpenFile::With::buffered_alone);
  if (!opened) return nullptr;
  const OpenFile& file = *opened.value();
  const Result<std::uint64_t> size = file.base().size();
  if (!size) return nullptr;
  const File* direct = wants_direct ? file.direct() : nullptr;
  if (direct != nullptr && direct->alignment() > window::ValueArena::kUnit) direct = nullptr;
  // The prefetches need a descriptor without read-ahead, except where opens drop the page cache.
  if (!file.opens_drop_cache() && file.exact() == nullptr) return nullptr;
  facts.local = file.local();
  facts.direct_works = direct != nullptr;
  facts.opens_drop_cache = file.opens_drop_cache();
  facts.file_bytes = std::min(size.value(), used_bytes);
  facts.available = memory_facts().available;
  const ReadPath path = choose_read_path(Access::prefetch, facts).path;
  if (path == ReadPath::page_faults) return nullptr;
  try {
    return std::shared_ptr<PrefetchFile>(new PrefetchFile(*prefetcher, opened.value(),
                                                          direct != nullptr && path != ReadPath::page_cache,
                                                          origin.fd, path, size.value()));
  } catch (...) {
    return nullptr;
  }
}

bool PrefetchFile::to_arena(std::uint64_t offset) noexcept {
  if (path_ != ReadPath::direct_once) return path_ == ReadPath::direct;
  const std::uint64_t piece = offset >> kPieceShift;
  if (piece >= pieces_) return true;  // the file has grown since: earlier reads are unknown
  const std::uint64_t bit = std::uint64_t{1} << (piece % 64);
  return (read_[piece / 64].fetch_or(bit, std::memory_order_relaxed) & bit) == 0;
}

}  // namespace lmdbio::tree
