#include "lmdbio/ahead/file_policy.h"

#include <array>
#include <mutex>

#include "lmdbio/window/prefetcher.h"

namespace lmdbio::ahead {

using window::Prefetcher;
using window::WindowFile;

std::uint64_t lookup_missed(WindowFile& file, std::uint64_t snapshot, std::uint64_t at,
                            std::uint64_t used_bytes, bool far) noexcept {
  ++file.stats.lookups_missed;
  if (file.users == 0) return 0;
  const std::uint64_t misses = far ? file.lookups.note_miss(snapshot, at, used_bytes) : 0;
  if (file.load.is_going()) return 0;
  if (!file.lookups.claim_load(snapshot, used_bytes, file.local)) return misses;
  Prefetcher& prefetcher = *Prefetcher::existing();
  const std::lock_guard lock(prefetcher);
  if (file.load.is_going() || file.users == 0) return 0;
  if (!prefetcher.begin_whole_load(file, used_bytes)) return misses;
  file.lookups.load_begins();
  return 0;
}

// Samples at most 16 values, spread over the leaf, each by an address in its middle page.
void pass_by(WindowFile& file, const format::PageView& leaf, const window::WindowView& view) noexcept {
  constexpr unsigned kOfLeaf = 16;
  std::array<const std::byte*, kOfLeaf> values;
  std::size_t n = 0;
  const unsigned entries = leaf.count(), apart = (entries + kOfLeaf - 1) / kOfLeaf;
  for (unsigned i = 0; i < entries; i += apart) {
    format::Node node;
    if (!leaf.node(i, node)) break;
    if ((node.flags() & format::kBigData) == 0) continue;
    const std::uint64_t pages = view.overflow_pages(node.data_size());
    const std::uint64_t page = format::raw(node.overflow()) + pages / 2;
    if (page < view.pages()) values[n++] = view.hint(format::Pgno{page});
  }
  if (n != 0) Prefetcher::existing()->watch_late_use(file, {values.data(), n}, view.pages() << view.shift());
}

}  // namespace lmdbio::ahead
