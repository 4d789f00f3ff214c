#include "lmdbio/window/whole_load.h"

#include <algorithm>
#include <utility>

#include "lmdbio/base/config.h"
#include "lmdbio/base/memory_facts.h"

namespace lmdbio::window {

namespace {

/// Upper limit on the bytes that all processes of the node together have in flight for the load of one file.
/// Each process may always read one chunk.  The number is large enough for remote storage, and small enough
/// that the programs' own reads do not wait long.
constexpr std::uint64_t kLoadAhead = std::uint64_t{32} << 20, kLocalLoadAhead = std::uint64_t{8} << 20;
/// How many chunks a load into the page cache reads between two checks of free memory.
constexpr std::uint32_t kLookEvery = 16;
/// A load into private memory skips chunks that other processes are reading.  It comes back to them after
/// this time, in ns, at most kMostTurns times.
constexpr std::int64_t kNextTurn = 10'000'000;
constexpr unsigned kMostTurns = 8;

/// Returns how many chunks this process may have in flight for the load of one file; 1 until the number of
/// processes is known.
std::uint64_t most_reading(const WindowFile& file) noexcept {
  const unsigned processes = file.source->processes();
  if (processes == 0) return 1;
  const std::uint64_t ahead = file.local ? kLocalLoadAhead : kLoadAhead;
  return std::max<std::uint64_t>(ahead / file.chunk_bytes / processes, 1);
}

void end_if_done(WindowFile& file) noexcept {
  WholeLoad& load = file.load;
  if (!load.is_going() || load.next < load.end_chunk || load.reading != 0) return;
  if (std::exchange(load.has_skipped, false) && load.turns++ < kMostTurns) {
    load.next = 0;
    load.wait_until_ns = now_ns() + kNextTurn;
    return;
  }
  load.end();
  ++file.stats.loads_finished;
}

}  // namespace

ReadPath whole_load_path(const WindowFile& file, std::uint64_t used_bytes,
                         const gather::MemoryBudget& budget) noexcept {
  if (file.keeps_chunks()) return ReadPath::none;
  const std::uint64_t chunks = used_bytes / file.chunk_bytes + 1;
  ReadFacts facts;
  facts.setting = config().io;
  facts.file_bytes = used_bytes;
  facts.available = memory_facts().available;
  facts.walks = file.path();
  facts.in_cache = file.reads_through_sources();
  facts.room_for_all =
      chunks * file.chunk_bytes <= budget.left(gather::MemoryUse::chunks) && 2 * chunks <= budget.vmas_left();
  return choose_read_path(Access::load, facts).path;
}

void begin_whole_load(WindowFile& file, std::uint64_t used_bytes, ReadPath path) noexcept {
  file.load.path = path;
  file.load.next = 0;
  file.load.end_chunk = raw(file.chunk_at(used_bytes - 1)) + 1;
  file.load.has_skipped = false;
  file.load.turns = 0;
  file.load.wait_until_ns = 0;
  ++file.load.begun;
  ++file.stats.loads_begun;
  file.comes_around = true;  // keep the chunks: lookups want all of them
}

bool next_of_loads(ChunkCache& cache, ReadJob& job, bool idle) {
  gather::MemoryBudget& budget = cache.budget();
  for (WindowFile* const f : cache.files()) {
    WindowFile& file = *f;
    WholeLoad& load = file.load;
    if (!load.is_going() || (load.wait_until_ns != 0 && now_ns() < load.wait_until_ns)) continue;
    load.wait_until_ns = 0;
    if (file.has_page_cache() && budget.nearly_full()) continue;  // the load waits: IoWorker tries again
    const std::uint64_t most = most_reading(file);
    const bool publishes = load.path == ReadPath::direct;
    for (; load.next < load.end_chunk && load.reading < most; ++load.next) {
      const ChunkIndex c{load.next};
      if (file.table.state(c) != ChunkState::file || file.bytes_in(c) == 0) continue;
      if (publishes) {  // a load evicts no chunks
        if (!budget.has_room(gather::MemoryUse::chunks, file.chunk_bytes, 2)) {
          if (idle) load.end();
          break;
        }
      } else if (load.next % kLookEvery == 0) {
        if (!still_fits_page_cache(std::uint64_t{load.end_chunk} * file.chunk_bytes,
                                   memory_facts().available)) {
          load.end();
          break;
        }
      }
      job.what = ChunkJob{c, file.table.start(c), publishes, file.table.newest_snapshot(), load.begun};
      job.file = file.shared_from_this();
      if (publishes) budget.take(gather::MemoryUse::chunks, file.chunk_bytes, 0);
      ++load.reading;
      ++load.next;
      return true;
    }
    end_if_done(file);
  }
  return false;
}

void whole_load_went_on(WindowFile& file, const ChunkJob& job, bool good) noexcept {
  WholeLoad& load = file.load;
  if (load.reading > 0) --load.reading;
  if (!good && job.load == load.begun)  // chunks of an earlier load say nothing about this one
    load.end();
  else
    end_if_done(file);
}

}  // namespace lmdbio::window
