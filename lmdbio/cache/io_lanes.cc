// The I/O thread's lanes: a queue and an engine for each file and each kind of read.
#include <fcntl.h>

#include <mutex>
#include <new>
#include <utility>

#include "lmdbio/base/config.h"
#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/cache/io_worker.h"

namespace lmdbio::cache {

namespace {

/// Queue depth of one lane: as many requests as the longest plan has with chunks of the usual size.
constexpr unsigned kDirectDepth = 64, kBufferedDepth = 32, kBufferedLocalDepth = 2;

IoEngineChoice engine_for(bool direct) noexcept {
  const IoEngineChoice wanted = config().engine;
  // Reads into the page cache block in the kernel: io_uring would hand them to threads of its own.
  return wanted == IoEngineChoice::automatic && !direct ? IoEngineChoice::threads : wanted;
}

constinit EngineFactory make_engine = select_engine;

}  // namespace

EngineFactory& engine_factory() noexcept { return make_engine; }

// Adds the counters of the file's engines to its statistics.
void IoWorker::count(const FileCache& file) noexcept {
  for (const std::unique_ptr<Lane>& l : lanes_) {
    if (l->file.get() != &file) continue;
    const IoEngine::Counters now = l->queue->counters();
    l->file->stats.add_reads(now, l->counted, l->queue->take_sizes());
    l->counted = now;
  }
}

// Drops chunks that walks have passed from the page cache.  The file does not fit, and its pages must not
// evict those of other programs.
void IoWorker::drop_pages() noexcept {
  for (const std::unique_ptr<Lane>& l : lanes_) {
    FileCache& file = *l->file;
    if (!file.has_dropping.load(std::memory_order_relaxed)) continue;
    std::vector<Extent> pieces;
    {
      const std::lock_guard lock(owner_.mutex_);
      pieces.swap(file.dropping);
      file.has_dropping.store(false, std::memory_order_relaxed);
    }
    for (const Extent& e : pieces)
      (void)::posix_fadvise(file.buffered.fd(), static_cast<off_t>(e.offset), static_cast<off_t>(e.bytes),
                            POSIX_FADV_DONTNEED);
  }
}

IoWorker::LaneKind IoWorker::lane_kind(const FileCache& file, const ReadJob& job) const noexcept {
  const ChunkJob* const c = job.chunk();
  if (c == nullptr) return file.exact != nullptr ? LaneKind::exact : LaneKind::buffered;
  if (c->publishes) return file.direct != nullptr ? LaneKind::direct : LaneKind::buffered;
  return config().engine == IoEngineChoice::automatic && !file.cannot_populate ? LaneKind::populate
                                                                               : LaneKind::buffered;
}

IoWorker::Lane* IoWorker::lane(const std::shared_ptr<FileCache>& file, LaneKind kind) {
  for (const std::unique_ptr<Lane>& l : lanes_)
    if (l->file == file && l->kind == kind) return l.get();
  const bool populates = kind == LaneKind::populate;
  const bool direct = kind == LaneKind::direct, exact = kind == LaneKind::exact;
  const File& f = direct ? *file->direct : exact ? *file->exact : file->buffered;
  const unsigned depth = direct ? kDirectDepth : file->local && !exact ? kBufferedLocalDepth : kBufferedDepth;
  const char* name = "";
  Result<std::unique_ptr<IoEngine>> engine =
      make_engine(f, depth, populates ? EngineKind::populate : engine_kind(engine_for(direct)), &name);
  if (!engine && populates) {
    file->cannot_populate = true;
    return lane(file, LaneKind::buffered);
  }
  if (!engine) throw std::bad_alloc();
  if (direct || file->path() != ReadPath::direct) file->set_engine(name);
  auto made = std::make_unique<Lane>();
  made->file = file;
  made->kind = kind;
  made->queue = std::make_unique<ReadQueue>(std::move(engine).value(), 0,
                                            populates ? kFillRequest : ReadQueue::kMostRequest);
  const std::lock_guard lock(owner_.mutex_);  // a forked child reads the list
  lanes_.push_back(std::move(made));
  return lanes_.back().get();
}

// Removes the lanes of files that were closed.
void IoWorker::drop_lanes() noexcept {
  for (std::size_t i = 0; i < lanes_.size();) {
    const Lane& l = *lanes_[i];
    if (l.file->users != 0 || l.queue->waiting() != 0 || l.queue->in_flight() != 0) {
      ++i;
      continue;
    }
    std::unique_ptr<Lane> gone;  // destroyed after the lock is released
    const std::lock_guard lock(owner_.mutex_);
    gone = std::move(lanes_[i]);
    lanes_.erase(lanes_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace lmdbio::cache
