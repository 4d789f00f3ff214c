#include "lmdbio/window/path_change.h"

#include <algorithm>

#include "lmdbio/base/log.h"
#include "lmdbio/base/memory_facts.h"

namespace lmdbio::window {

namespace {

/// Number of bytes read into the page cache between two checks of free memory.  After walks have reached this
/// many bytes, the count of lost bytes starts again from zero.
constexpr std::uint64_t kLookEveryBytes = std::uint64_t{64} << 20;
/// Size in bytes of the sample of a chunk that is looked up in the page cache when a walk reaches the
/// chunk.
constexpr std::uint64_t kSampleBytes = std::uint64_t{256} << 10;
constexpr double kStillThere = 0.5;

// Ends reads into the page cache.  Data that is already there is still used.  If direct reads or private
// memory are not available, reads go on, and chunks that walks have passed are dropped from the page cache.
void leave_page_cache(WindowFile& file, std::uint64_t limit, const char* why) noexcept {
  if (file.path() != ReadPath::page_cache) return;
  if (file.direct() == nullptr || limit == 0) {
    file.drop_behind = true;
    return;
  }
  file.go_direct();
  ++file.stats.went_direct;
  log_line(LogLevel::info, "%s: switching to direct I/O: %s", file.name.c_str(), why);
}

}  // namespace

void check_memory(WindowFile& file, std::uint64_t limit) noexcept {
  if (file.page_cache_use.read < kLookEveryBytes) return;
  file.page_cache_use.read = 0;
  if (!file.decision.uses_resident || file.drop_behind) return;
  if (!still_fits_page_cache(file.used_bytes, memory_facts().available))
    leave_page_cache(file, limit, "the file no longer fits into the page cache");
}

std::optional<double> filled_share(const WindowFile& file, ChunkIndex chunk) noexcept {
  if (!file.decision.uses_resident || file.path() != ReadPath::page_cache) return {};
  const std::uint64_t bytes = file.bytes_in(chunk);
  return file.residency().share(file.offset(chunk) + bytes / 2, std::min(kSampleBytes, bytes - bytes / 2));
}

void note_filled(WindowFile& file, ChunkIndex chunk, double share, std::uint64_t limit) noexcept {
  const std::uint64_t bytes = file.bytes_in(chunk);
  PageCacheUse& use = file.page_cache_use;
  use.reached += bytes;
  if (share < kStillThere) {
    file.stats.vanished += bytes;
    use.lost += bytes;
  }
  if (page_cache_loses(use.lost, file.stats.vanished))
    leave_page_cache(file, limit, "pages are evicted from the page cache before they are used");
  if (use.reached >= kLookEveryBytes) use.reached = use.lost = 0;
}

}  // namespace lmdbio::window
