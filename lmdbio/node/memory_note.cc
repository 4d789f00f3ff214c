#include "lmdbio/node/memory_note.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "lmdbio/node/layout.h"

namespace lmdbio::node {

namespace {

struct Note {
  std::atomic<std::uint64_t> group, used, promised;
};
/// Upper limit for one process, in bytes, so that sums do not overflow, whatever a note says.
constexpr std::uint64_t kMost = std::uint64_t{1} << 48;
/// Distinguishes a note from other segments without a key.
constexpr std::size_t kNoteBytes = 4096 + kSizeMark;
static_assert(chunks_in(kNoteBytes) == 0, "no table");

Note& note_in(const Segment& s) noexcept { return *reinterpret_cast<Note*>(s.data()); }

}  // namespace

bool MemoryNote::look(std::uint64_t group, MemoryOfOthers& out) noexcept {
  if (!std::exchange(tried_, true)) {
    if (Result<Segment> made = Segment::make_unnamed(kNoteBytes); made) segment_ = std::move(made).value();
  }
  if (!segment_) return false;
  note_in(segment_).group.store(group, std::memory_order_relaxed);
  try {
    for (const SegmentFacts& s : own_segments()) {
      if (s.key != IPC_PRIVATE || s.bytes != kNoteBytes || s.attached == 0 || s.id == segment_.id()) continue;
      const Result<Segment> other = Segment::open_read_only(s.id);
      if (!other || other.value().size() != kNoteBytes) continue;
      const Note& note = note_in(other.value());
      const std::uint64_t used = std::min(note.used.load(std::memory_order_relaxed), kMost);
      const std::uint64_t promised = std::clamp(note.promised.load(std::memory_order_relaxed), used, kMost);
      if (promised == 0 || note.group.load(std::memory_order_relaxed) != group) continue;
      ++out.processes;
      out.used += used;
      out.promised += promised;
    }
    return true;
  } catch (...) {  // out of memory
    return false;
  }
}

void MemoryNote::set(std::uint64_t used, std::uint64_t promised) noexcept {
  if (!segment_) return;
  note_in(segment_).used.store(used, std::memory_order_relaxed);
  note_in(segment_).promised.store(promised, std::memory_order_relaxed);
}

void MemoryNote::forget() noexcept {
  segment_.forget();
  tried_ = false;
}

}  // namespace lmdbio::node
