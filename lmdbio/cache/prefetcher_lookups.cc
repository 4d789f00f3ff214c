// The part of the Prefetcher that serves lookups: what they miss, and the load of a whole file in the
// background.
#include <algorithm>

#include "lmdbio/base/config.h"
#include "lmdbio/base/memory_facts.h"
#include "lmdbio/cache/io_worker.h"
#include "lmdbio/cache/prefetcher.h"

namespace lmdbio::cache {

namespace {

/// Of a load, in flight: enough for storage that is far away, little enough not to keep a program's own reads
/// waiting.
constexpr std::uint64_t kLoadAhead = std::uint64_t{32} << 20, kLocalLoadAhead = std::uint64_t{8} << 20;
/// Loads and lists of leaf pages for one file at most: a writer that goes on makes each worth less.
constexpr unsigned kMostLoads = 8, kMostClaims = 8;
/// A load into the page cache looks at the memory that is left once in so many chunks.
constexpr std::uint32_t kLookEvery = 16;

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
    if (begin_load(file, used_bytes)) return 0;
  }
  return far ? file.misses.misses() : 0;
}

// With the lock held, once a snapshot.
bool Prefetcher::begin_load(FileCache& file, std::uint64_t used_bytes) noexcept {
  if (file.anonymous || file.load.begun >= kMostLoads) return false;
  const std::uint64_t taken = std::min(used_, limit_);
  const std::uint64_t chunks = used_bytes / file.chunk_bytes + 1;
  ReadFacts facts;
  facts.setting = config().io;
  facts.file_bytes = used_bytes;
  facts.available = memory_facts().available;
  facts.walks = file.path();
  facts.room_for_all = chunks * file.chunk_bytes <= limit_ - taken &&
                       2 * chunks <= most_areas_ - std::min(resident_areas_, most_areas_);
  const ReadPath path = choose_read_path(Access::load, facts).path;
  if (path == ReadPath::none || !ensure_worker()) return false;
  file.load.path = path;
  file.load.next = 0;
  file.load.end = raw(file.chunk_at(used_bytes - 1)) + 1;
  ++file.load.begun;
  file.load.missed_ns = 0;
  ++file.stats.loads_begun;
  file.comes_around = true;  // chunks are kept: lookups come to any of them again
  worker_->wake();
  return true;
}

bool Prefetcher::next_of_load(Job& job, bool idle) {
  for (FileCache* const f : files_) {
    FileCache& file = *f;
    WholeLoad& load = file.load;
    if (load.path == ReadPath::none) continue;
    const std::uint64_t ahead = file.local ? kLocalLoadAhead : kLoadAhead;
    const bool chunks = load.path == ReadPath::direct;
    for (; load.next < load.end && load.reading < std::max<std::uint64_t>(ahead / file.chunk_bytes, 1);
         ++load.next) {
      const ChunkIndex c{load.next};
      if (file.table.state(c) != ChunkState::file || file.bytes_in(c) == 0) continue;
      if (chunks) {  // for what walks hold there is no claim
        if (resident_areas_ + 2 > most_areas_ || used_ + file.chunk_bytes > limit_now()) {
          if (idle) load.path = ReadPath::none;
          break;
        }
      } else if (load.next % kLookEvery == 0) {
        if (!still_fits_page_cache(std::uint64_t{load.end} * file.chunk_bytes, memory_facts().available)) {
          load.path = ReadPath::none;
          break;
        }
      }
      job.generation = file.table.start(c);
      job.file = file.shared_from_this();
      job.chunk = c;
      job.extent = {};
      job.has_memory = chunks;
      job.whole = true;
      job.load = load.begun;
      if (chunks) used_ += file.chunk_bytes;
      ++load.reading;
      ++load.next;
      return true;
    }
    if (load.path != ReadPath::none && load.next >= load.end && load.reading == 0) {
      load.path = ReadPath::none;
      ++file.stats.loads_finished;
    }
  }
  return false;
}

void Prefetcher::load_went_on(const Job& job, bool good) noexcept {
  FileCache& file = *job.file;
  WholeLoad& load = file.load;
  if (load.reading > 0) --load.reading;
  if (load.path == ReadPath::none) return;
  if (!good && job.load == load.begun) {  // what is left of an earlier one says nothing
    load.path = ReadPath::none;
  } else if (load.next >= load.end && load.reading == 0) {
    load.path = ReadPath::none;
    ++file.stats.loads_finished;
  }
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
