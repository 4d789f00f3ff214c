// The reads of the I/O thread, from a job to its outcome.
#include <algorithm>
#include <cerrno>
#include <mutex>
#include <new>
#include <utility>

#include "lmdbio/base/config.h"
#include "lmdbio/gather/cached_engine.h"
#include "lmdbio/window/io_worker.h"
#include "lmdbio/window/whole_load.h"

namespace lmdbio::window {

namespace {

/// All reads into the page cache may write to one buffer.  ThreadSanitizer reports this as a race, so its
/// builds use several buffers.
#if defined(__SANITIZE_THREAD__)
constexpr std::size_t kScratches = 512;  // four for each read in flight
#else
constexpr std::size_t kScratches = 1;
#endif

/// Returns whether a read failed for lack of memory, or because this kind of read is refused.  In both cases
/// the file itself may be intact.
bool lacks_means(Status st) noexcept {
  switch (st.raw()) {
    case ENOMEM:
    case EAGAIN:
    case ENOBUFS:
    case EINVAL:
    case EOPNOTSUPP:
    case ENOSYS:
    case EPERM:
    case EACCES:
    case EBADF:
    case ECANCELED:
      return true;
    default:
      return false;
  }
}

}  // namespace

void IoWorker::begin(ReadJob&& job, Staging memory) noexcept {
  std::size_t at = 0;
  while (fills_[at].busy) ++at;
  Fill& f = fills_[at];
  f.job = std::move(job);
  f.busy = true;
  f.group = {};
  f.staging = std::move(memory);
  ++in_flight_;
  WindowFile& file = *f.job.file;
  const ChunkJob* const chunk = f.job.chunk();
  const bool publish = chunk != nullptr && chunk->publishes;
  Status st;
  try {
    Lane& l = lane(f.job.file);
    l.queues.set_file_bytes(file.file_bytes.load(std::memory_order_relaxed));
    ReadQueue& queue = queue_for(l, f.job);
    const Extent wanted = chunk != nullptr ? Extent{file.offset(chunk->chunk), file.bytes_in(chunk->chunk)}
                                           : f.job.extent()->extent;
    const auto keep = [&st](auto made, auto& into) {
      if (made)
        into = std::move(made).value();
      else
        st = made.error();
    };
    if (publish && !f.staging) keep(Staging::make(file.chunk_bytes), f.staging);
    if (!publish && !scratch_) keep(Mapping::zeroed(kScratches * kFillRequest), scratch_);
    if (st.ok())
      st = publish ? queue.add(f.group, wanted, f.staging.data())
                   : queue.add_unread(f.group, wanted, {scratch_.data(), scratch_.size()});
    queue.submit();
  } catch (...) {
    st = Status::from_errno(ENOMEM);
  }
  if (!st.ok()) f.group.status = st;
  if (f.group.done()) finished(at);
}

IoWorker::Lane::Lane(std::shared_ptr<WindowFile> f)
    : file(std::move(f)),
      backing(file->backing()),
      queues(backing.file, backing.sources() && !file->is_image(backing)
                               ? gather::cached_engines(backing.sources(), false)
                               : gather::MakeEngine()) {}

IoWorker::Lane& IoWorker::lane(const std::shared_ptr<WindowFile>& file) {
  for (const std::unique_ptr<Lane>& l : lanes_)
    if (l->file == file && &l->backing == &file->backing()) return *l;
  lanes_.push_back(std::make_unique<Lane>(file));
  return *lanes_.back();
}

ReadQueue& IoWorker::queue_for(Lane& lane, const ReadJob& job) {
  using gather::ReadKind;
  WindowFile& file = *lane.file;
  const ChunkJob* const c = job.chunk();
  const char* name = nullptr;
  const auto get = [&](ReadKind kind) {
    const Result<ReadQueue*> queue = lane.queues.get(kind, &name);
    if (queue && name != nullptr && (kind == ReadKind::chunk_direct || file.path() != ReadPath::direct))
      file.set_engine(name);
    return queue;
  };
  if (c != nullptr && !c->publishes && !file.cannot_populate &&
      config().engine == IoEngineChoice::automatic) {
    if (const Result<ReadQueue*> queue = get(ReadKind::chunk_filled); queue) return *queue.value();
    file.cannot_populate = true;
  }
  const Result<ReadQueue*> queue = get(c == nullptr                                ? ReadKind::piece_cached
                                       : !c->publishes || file.direct() == nullptr ? ReadKind::chunk_cached
                                                                                   : ReadKind::chunk_direct);
  if (!queue) throw std::bad_alloc();
  return *queue.value();
}

// Removes the lanes of files that were closed.
void IoWorker::drop_lanes() noexcept {
  std::erase_if(lanes_, [](const std::unique_ptr<Lane>& l) {
    return (l->file->users == 0 || &l->backing != &l->file->backing()) && !l->queues.is_busy();
  });
}

// Submits requests and takes results.  Returns true if some request has ended.
bool IoWorker::pump() noexcept {
  bool any = false;
  for (const std::unique_ptr<Lane>& l : lanes_) any = l->queues.pump() || any;
  for (std::size_t i = 0; i < fills_.size(); ++i) {
    if (!fills_[i].busy || !fills_[i].group.done()) continue;
    finished(i);
    any = true;
  }
  return any;
}

void IoWorker::finished(std::size_t at) noexcept {
  Fill& f = fills_[at];
  if (const ChunkJob* const c = f.job.chunk(); c != nullptr) {
    const ChunkSource::Filled filled = f.job.file->source->filled(c->chunk, f.group.status.ok());
    f.name = filled.name;
    if (!filled.good && f.group.status.ok())
      f.group.status = Status::from_errno(EAGAIN);  // page faults read the bytes instead
  }
  for (const std::unique_ptr<Lane>& l : lanes_)
    if (l->file == f.job.file) l->file->count(l->backing, l->queues.take_counts());
  {
    const std::lock_guard lock(owner_.mutex_);
    if (const ChunkJob* const c = f.job.chunk(); c != nullptr)
      chunk_ended(f, *c);
    else
      extent_ended(f, *f.job.extent());
  }
  f.staging = Staging();
  f.name.reset();
  f.job = {};
  f.busy = false;
  --in_flight_;
  may_have_jobs_ = true;
}

void IoWorker::extent_ended(const Fill& f, const ExtentJob& job) noexcept {
  WindowFile& file = *f.job.file;
  ++file.stats.extents;
  const bool failed = !f.group.status.ok() && !lacks_means(f.group.status);
  if (failed) ++file.stats.read_failed;
  owner_.schedule_.extent_ended(file, job.extent, failed ? f.group.status.raw() : 0);
}

void IoWorker::chunk_ended(Fill& f, const ChunkJob& job) noexcept {
  WindowFile& file = *f.job.file;
  const bool good = f.group.status.ok();
  const bool current = job.generation == file.table.generation();
  bool resident = false;
  if (job.publishes) {
    keeps_shared_ = keeps_shared_ || f.staging.is_shared();
    resident = owner_.chunks_.finish(file, job.chunk, job.generation, good, f.staging, f.name);
    if (good && !resident) ++(current ? file.stats.publish_failed : file.stats.stale);
  } else {
    (void)file.table.finish(job.chunk, job.generation, false, NoPlaces{});
  }
  ++file.stats.chunks_read;
  if (const auto ns = static_cast<std::uint64_t>(now_ns() - f.group.sent_ns);
      good && job.publishes && f.group.sent_ns != 0 &&
      (file.least_latency_ns == 0 || ns < file.least_latency_ns))
    file.least_latency_ns = ns;
  if (job.load != 0) {
    if (resident) owner_.chunks_.note_lookups(file, job.chunk);
    whole_load_went_on(file, job, good && (resident || !job.publishes));
  }
  // A lack of memory or descriptors says nothing about the file.  If there is a mapping, page faults show
  // whether the file can be read.
  const bool failed = !good && (!lacks_means(f.group.status) || !file.has_page_cache());
  if (failed) ++file.stats.read_failed;
  if (failed) file.read_failed.store(true, std::memory_order_relaxed);
  // A read that began before a change of snapshot is repeated if a walk still wants it.
  const Outcome outcome = failed                      ? Outcome::failed
                          : !good                     ? Outcome::mapped
                          : resident                  ? Outcome::ready
                          : job.publishes && !current ? Outcome::wanted
                          : !job.publishes            ? Outcome::filled
                                                      : Outcome::mapped;
  owner_.schedule_.settle(file, job.chunk, outcome, f.group.status.raw());
  if (!file.has_page_cache()) owner_.chunk_read_.notify();
}

}  // namespace lmdbio::window
