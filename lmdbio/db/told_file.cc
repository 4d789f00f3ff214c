#include "lmdbio/db/told_file.h"

#include <utility>

#include "lmdbio/base/memory_facts.h"
#include "lmdbio/cache/prefetcher.h"

namespace lmdbio::db {

ToldFile::ToldFile(cache::Prefetcher& prefetcher, File buffered, std::optional<File> direct, int programs_fd,
                   ToldWay way, std::uint64_t bytes)
    : prefetcher_(prefetcher),
      buffered_(std::move(buffered)),
      direct_(std::move(direct)),
      residency_(buffered_, programs_fd, Residency::Sampling::no),
      way_(way),
      slabs_(prefetcher) {
  if (way_ != ToldWay::arena_once) return;
  pieces_ = static_cast<std::size_t>(bytes >> kPieceShift) + 1;
  read_ = std::make_unique<std::atomic<std::uint64_t>[]>(pieces_ / 64 + 1);
}

std::shared_ptr<ToldFile> ToldFile::open(const cache::Origin& origin) noexcept {
  const IoMode mode = config().io;
  if (origin.fd < 0 || mode == IoMode::mmap) return nullptr;
  cache::Prefetcher* const prefetcher = cache::Prefetcher::get();
  if (prefetcher == nullptr) return nullptr;
  Result<File> buffered = File::keep(origin.fd, origin.path, origin.id, File::Kind::exact);
  if (!buffered) return nullptr;
  const Result<std::uint64_t> size = buffered.value().size();
  if (!size) return nullptr;
  std::optional<File> direct;
  const std::uint64_t limit = prefetcher->memory_limit();
  if (limit != 0 && mode != IoMode::buffered) {
    if (Result<File> d = buffered.value().again(File::Kind::direct); d && d.value().alignment() <= cache::ValueArena::kUnit)
      direct = std::move(d).value();
  }
  const ToldWay way =
      choose_told_way({mode, direct.has_value(), limit, size.value(), memory_facts().available});
  try {
    return std::shared_ptr<ToldFile>(
        new ToldFile(*prefetcher, std::move(buffered).value(), std::move(direct), origin.fd, way, size.value()));
  } catch (...) {
    return nullptr;
  }
}

bool ToldFile::to_arena(std::uint64_t offset) noexcept {
  if (way_ != ToldWay::arena_once) return way_ == ToldWay::arena;
  const std::uint64_t piece = offset >> kPieceShift;
  if (piece >= pieces_) return true;  // the file has grown since: not known
  const std::uint64_t bit = std::uint64_t{1} << (piece % 64);
  return (read_[piece / 64].fetch_or(bit, std::memory_order_relaxed) & bit) == 0;
}

}  // namespace lmdbio::db
