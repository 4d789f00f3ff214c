// The part of the Prefetcher that serves lookups: what they miss, and what is fetched for them.
#include "lmdbio/cache/io_worker.h"
#include "lmdbio/cache/prefetcher.h"
#include "lmdbio/cache/whole_load.h"

namespace lmdbio::cache {

namespace {

/// Lists of leaf pages for one file at most: a writer that goes on makes each worth less.
constexpr unsigned kMostClaims = 8;

}  // namespace

std::uint64_t Prefetcher::lookup_missed(FileCache& file, std::uint64_t snapshot, std::uint64_t at,
                                        std::uint64_t used_bytes, bool far) noexcept {
  const std::lock_guard lock(mutex_);
  ++file.stats.lookups_missed;
  if (file.users == 0) return 0;
  if (far) file.misses.note(snapshot, at, used_bytes);
  if (file.load.path != ReadPath::none) return 0;
  if (file.misses.all_over() && file.load.snapshot != snapshot &&
      load_is_due(file.local, used_bytes, file.load.missed_ns)) {
    file.load.snapshot = snapshot;
    const ReadPath path = whole_load_path(file, used_bytes, chunks_.budget());
    if (path != ReadPath::none && ensure_worker()) {
      begin_whole_load(file, used_bytes, path);
      worker_->wake();
      return 0;
    }
  }
  return far ? file.misses.misses() : 0;
}

bool Prefetcher::claim_leaves(FileCache& file, std::uint64_t snapshot) noexcept {
  const std::lock_guard lock(mutex_);
  if (file.leaves_for == snapshot || file.leaves_claimed >= kMostClaims || file.users == 0) return false;
  file.leaves_for = snapshot;
  ++file.leaves_claimed;
  return true;
}

void Prefetcher::note_leaves(FileCache& file, std::uint64_t pages) noexcept {
  const std::lock_guard lock(mutex_);
  file.stats.leaves_fetched += pages;
}

void Prefetcher::note_exact(FileCache& file, std::uint64_t bytes, std::uint64_t ns) noexcept {
  const std::lock_guard lock(mutex_);
  ++file.stats.exact_reads;
  file.stats.exact_bytes += bytes;
  file.load.missed_ns += ns;
}

}  // namespace lmdbio::cache
