#include "lmdbio/db/file_policy.h"

#include <array>
#include <mutex>
#include <new>

#include "lmdbio/cache/prefetcher.h"

namespace lmdbio::db {

using cache::FileCache;
using cache::Prefetcher;

namespace {

/// Upper limits per file: background loads of the whole file, and fetches of all leaf pages.  A busy writer
/// makes each of them worth less.
constexpr unsigned kMostLoads = 8, kMostClaims = 8;

}  // namespace

// Returns the file's policy, made at the first call, or nullptr if there is no memory.  The caller holds
// the Prefetcher's lock, which also keeps signals from the allocation.  FilePolicy is the only kind of
// extension.
FilePolicy* FilePolicy::of(FileCache& file) noexcept {
  if (file.extension == nullptr) file.extension.reset(new (std::nothrow) FilePolicy);
  return static_cast<FilePolicy*>(file.extension.get());
}

std::uint64_t FilePolicy::lookup_missed(FileCache& file, std::uint64_t snapshot, std::uint64_t at,
                                        std::uint64_t used_bytes, bool far) noexcept {
  Prefetcher& prefetcher = *Prefetcher::existing();
  const std::lock_guard lock(prefetcher);
  ++file.access.lookups_missed;
  FilePolicy* const p = of(file);
  if (p == nullptr) return 0;
  if (file.users == 0) return 0;
  if (far) p->misses_.note(snapshot, at, used_bytes);
  if (prefetcher.is_loading(file)) return 0;
  if (p->misses_.all_over() && p->load_snapshot_ != snapshot &&
      load_is_due(file.local, used_bytes, p->missed_ns_)) {
    p->load_snapshot_ = snapshot;
    if (p->loads_ < kMostLoads && prefetcher.begin_whole_load(file, used_bytes)) {
      ++p->loads_;
      p->missed_ns_ = 0;
      return 0;
    }
  }
  return far ? p->misses_.misses() : 0;
}

bool FilePolicy::claim_leaves(FileCache& file, std::uint64_t snapshot) noexcept {
  const std::lock_guard lock(*Prefetcher::existing());
  FilePolicy* const p = of(file);
  if (p == nullptr || p->leaves_for_ == snapshot || p->leaves_claimed_ >= kMostClaims || file.users == 0)
    return false;
  p->leaves_for_ = snapshot;
  ++p->leaves_claimed_;
  return true;
}

void FilePolicy::note_exact(FileCache& file, std::uint64_t bytes, std::uint64_t ns) noexcept {
  const std::lock_guard lock(*Prefetcher::existing());
  ++file.access.exact_reads;
  file.access.exact_bytes += bytes;
  file.access.exact_ns += ns;
  if (FilePolicy* const p = of(file); p != nullptr) p->missed_ns_ += ns;
}

void FilePolicy::note_epoch(FileCache& file) noexcept {
  const std::lock_guard lock(*Prefetcher::existing());
  file.comes_around = true;
}

// Samples at most 16 values, spread over the leaf, each by an address in its middle page.
void FilePolicy::pass_by(FileCache& file, const format::PageView& leaf,
                         const cache::WindowView& view) noexcept {
  constexpr unsigned kOfLeaf = 16;
  std::array<const std::byte*, kOfLeaf> values;
  std::size_t n = 0;
  const unsigned entries = leaf.count(), apart = (entries + kOfLeaf - 1) / kOfLeaf;
  for (unsigned i = 0; i < entries; i += apart) {
    format::Node node;
    if (!leaf.node(i, node)) break;
    if ((node.flags() & format::kBigData) == 0) continue;
    const std::uint64_t pages = format::overflow_pages(node.data_size(), view.shift());
    const std::uint64_t page = format::raw(node.overflow()) + pages / 2;
    if (page < view.pages()) values[n++] = view.hint(format::Pgno{page});
  }
  if (n != 0) Prefetcher::existing()->watch_late_use(file, {values.data(), n}, view.pages() << view.shift());
}

void FilePolicy::count(FileCache& file, const AccessCounters& more) noexcept {
  const std::lock_guard lock(*Prefetcher::existing());
  file.access.add(more);
}

AccessCounters FilePolicy::counters(const FileCache& file) noexcept {
  const std::lock_guard lock(*Prefetcher::existing());
  return file.access;
}

void FilePolicy::after_fork() noexcept {
  missed_ns_ = 0;
  load_snapshot_ = kNoSnapshot;
  loads_ = 0;
}

}  // namespace lmdbio::db
