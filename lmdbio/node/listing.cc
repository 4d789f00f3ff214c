#include "lmdbio/node/listing.h"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lmdbio/node/life.h"

namespace lmdbio::node {

namespace {

/// A new segment that no process has attached yet does not count as dead for this many seconds.
constexpr std::int64_t kBeingMade = 10;

bool is_table(const SegmentFacts& s) noexcept { return is_table_key(s.key) && chunks_in(s.bytes) != 0; }

// True if the segment tells whether a process lives (node/life.h).  Such a segment stays if its process is
// killed before it marks the segment for removal.
bool is_life(const SegmentFacts& s) noexcept { return s.key == IPC_PRIVATE && s.bytes == kLifeBytes; }

// True if no process has it attached.
bool is_dead(const SegmentFacts& s) noexcept {
  return s.attached == 0 && (s.was_attached || ::time(nullptr) - s.made_at >= kBeingMade);
}

struct CopiedRow {
  std::uint64_t life;
  ListedProcess process;
};

CopiedRow copy(const Row& r) noexcept {
  const std::uint64_t life = r.life.load();
  WalkNote walk = WalkNote::of(r.walk.load());
  walk.share = std::min(walk.share, 1000u);
  return {life,
          {r.pid.load(), life_segment(life), r.brought.load(), r.found.load(), r.waits.load(),
           r.taken_over.load(), r.files.load(), walk, r.walk_ns.load()}};
}

// Returns the file that the header describes, if its numbers are consistent.
std::optional<TableIdentity> file_of(const Header& h) noexcept {
  const std::uint64_t hash = h.identity.load();
  const TableIdentity file{h.dev.load(), h.ino.load(), h.chunk_bytes.load()};
  return file.hash() == hash ? std::optional(file) : std::nullopt;
}

// Copies the header and the living processes to `table`.  Returns false if the table has been removed.
bool look_into(ListedTable& table) {
  // The first attachment must not be ours.  Other processes would then believe that the process which makes
  // the table has died.
  if (!table.segment.was_attached) return true;
  std::vector<CopiedRow> rows;
  rows.reserve(kRows);
  {
    Result<Segment> opened = Segment::open_read_only(table.segment.id);
    if (!opened) return opened.error().raw() != EINVAL && opened.error().raw() != EIDRM;
    Segment& s = opened.value();
    if (s.size() != table.segment.bytes || s.is_removed()) return false;
    table.file = file_of(*reinterpret_cast<const Header*>(s.data()));
    const Row* const all = reinterpret_cast<const Row*>(s.data() + kRowsAt);
    for (unsigned at = 0; at < kRows; ++at)
      if (all[at].life.load() != 0) rows.push_back(copy(all[at]));
    if (table.segment.attached != 0 && s.is_alone()) {
      s.remove();
      return false;
    }
  }
  for (const CopiedRow& r : rows)
    if (lives(r.life)) table.processes.push_back(r.process);
  return true;
}

}  // namespace

std::vector<ListedTable> list_tables() {
  std::vector<ListedTable> found;
  for (const SegmentFacts& s : own_segments()) {
    if (!is_table(s)) continue;
    ListedTable table{s, is_dead(s), chunks_in(s.bytes), {}, {}};
    if (look_into(table)) found.push_back(std::move(table));
  }
  return found;
}

std::size_t remove_dead_tables() {
  std::size_t removed = 0;
  for (const SegmentFacts& s : own_segments())
    if ((is_table(s) || is_life(s)) && is_dead(s) && ::shmctl(s.id, IPC_RMID, nullptr) == 0 && is_table(s))
      ++removed;
  return removed;
}

}  // namespace lmdbio::node
