#include "lmdbio/db/prefetch_file.h"

#include <fcntl.h>

#include <utility>

#include "lmdbio/base/config.h"
#include "lmdbio/base/memory_facts.h"
#include "lmdbio/cache/prefetcher.h"
#include "lmdbio/io/file_system.h"
#include "lmdbio/io/open_anew.h"

namespace lmdbio::db {

PrefetchFile::PrefetchFile(cache::Prefetcher& prefetcher, File buffered, std::optional<File> direct,
                           int programs_fd, ReadPath path, std::uint64_t bytes)
    : prefetcher_(prefetcher),
      buffered_(std::move(buffered)),
      direct_(std::move(direct)),
      residency_(buffered_, programs_fd, Residency::Sampling::no),
      path_(path),
      slabs_(prefetcher) {
  if (path_ != ReadPath::direct_once) return;
  pieces_ = static_cast<std::size_t>(bytes >> kPieceShift) + 1;
  read_ = std::make_unique<std::atomic<std::uint64_t>[]>(pieces_ / 64 + 1);
}

std::shared_ptr<PrefetchFile> PrefetchFile::open(const Origin& origin) noexcept {
  if (origin.fd < 0) return nullptr;
  cache::Prefetcher* const prefetcher = cache::Prefetcher::get();
  if (prefetcher == nullptr) return nullptr;
  ReadFacts facts;
  facts.setting = config().io;
  facts.memory_limit = prefetcher->memory_limit();
  Result<OpenedAnew> opened =
      open_anew(origin, {may_read_directly(facts.setting, facts.memory_limit), false});
  if (!opened) return nullptr;
  OpenedAnew& files = opened.value();
  const Result<std::uint64_t> size = files.buffered.size();
  if (!size) return nullptr;
  if (files.direct && files.direct->alignment() > cache::ValueArena::kUnit) files.direct.reset();
  // One that is shared with others must keep its read-ahead, and is not good enough but for little.
  if (files.own)
    (void)files.buffered.with_fd([](int fd) noexcept { (void)::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); });
  else if (!files.drops_cache)
    return nullptr;
  (void)files.buffered.with_fd([&facts](int fd) noexcept { facts.local = is_local_file_system(fd); });
  facts.direct_works = files.direct.has_value();
  facts.opens_drop_cache = files.drops_cache;
  facts.file_bytes = size.value();
  facts.available = memory_facts().available;
  const ReadPath path = choose_read_path(Access::prefetch, facts).path;
  if (path == ReadPath::page_faults) return nullptr;
  if (path == ReadPath::page_cache) files.direct.reset();
  try {
    return std::shared_ptr<PrefetchFile>(new PrefetchFile(
        *prefetcher, std::move(files.buffered), std::move(files.direct), origin.fd, path, size.value()));
  } catch (...) {
    return nullptr;
  }
}

bool PrefetchFile::to_arena(std::uint64_t offset) noexcept {
  if (path_ != ReadPath::direct_once) return path_ == ReadPath::direct;
  const std::uint64_t piece = offset >> kPieceShift;
  if (piece >= pieces_) return true;  // the file has grown since: not known
  const std::uint64_t bit = std::uint64_t{1} << (piece % 64);
  return (read_[piece / 64].fetch_or(bit, std::memory_order_relaxed) & bit) == 0;
}

}  // namespace lmdbio::db
