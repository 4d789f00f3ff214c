#include "lmdbio/window/io_worker.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <utility>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/window/whole_load.h"

namespace lmdbio::window {

namespace {

/// How many jobs are taken under one hold of the Prefetcher's lock, before the first of them begins.
constexpr std::size_t kJobsAtOnce = 4;
/// Extents of at least this size, in bytes, are looked up in the page cache first.  For smaller extents the
/// lookup costs more than a read from the page cache.
constexpr std::uint64_t kWorthLooking = 64 << 10;

/// Interval in ns at which a process that keeps chunk files checks /dev/shm.  In this time a program fills
/// less than half of /dev/shm.
constexpr std::int64_t kLookAtShared = 50'000'000;

/// Interval in ns at which a load of a whole file is tried again after memory was nearly full.
constexpr std::int64_t kLoadAgain = 100'000'000;

}  // namespace

bool IoWorker::start() noexcept {
  try {
    fills_.resize(kMostFills);
  } catch (...) {
    return false;
  }
  table_ = PrivateTable::get();
  return table_ != nullptr && table_->start(thread_, nullptr, run, this) == 0;
}

void IoWorker::wake() noexcept {
  work_.notify();
  if (polling_.load()) table_->post(ringing_);
}

// Writes to the eventfd.  Runs in a thread of the private table, which has the descriptor.
void IoWorker::ring(void* self) noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(static_cast<IoWorker*>(self)->bell_.get(), &one, sizeof one);
}

void IoWorker::join() noexcept {
  (void)::pthread_join(thread_, nullptr);
  table_->retract(ringing_);
  (void)table_->call([this]() noexcept { bell_.reset(); });
}

void* IoWorker::run(void* self) noexcept {
  (void)::pthread_setname_np(::pthread_self(), "lmdbio-io");
  static_cast<IoWorker*>(self)->loop();
  return nullptr;
}

void IoWorker::loop() noexcept {
  const AsyncSignalsBlocked always;  // signals are blocked already; this saves a system call per lock
  bell_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));  // on failure sleep() wakes up at intervals
  for (;;) {
    const std::uint32_t seen = work_.now();
    bool worked = false;
    try {
      worked = take_jobs(seen);
    } catch (...) {  // out of memory: let waiting walks go on
      owner_.lock();
      owner_.give_up();
      owner_.unlock();
    }
    drop_pages();
    if (watches_late_use_.load(std::memory_order_relaxed)) look_for_late_use();
    if (keeps_shared_) look_at_shared_memory();
    if (pump() || worked) continue;
    if (stopping_ && idle()) break;
    sleep(seen);
  }
  lanes_.clear();
}

// Takes and begins jobs.  Returns true if something was begun or has ended.  `seen`: the count of work_
// before the call.
bool IoWorker::take_jobs(std::uint32_t seen) {
  drop_lanes();
  bool any = false;
  while (in_flight_ < kMostFills && (may_have_jobs_ || seen != asked_for_)) {
    std::array<ReadJob, kJobsAtOnce> jobs;
    std::size_t n = 0;
    bool failed = false;
    const std::size_t most = std::min(jobs.size(), kMostFills - in_flight_);
    {
      const std::lock_guard lock(owner_.mutex_);
      if (stopping_) break;
      try {
        while (n < most && owner_.next_job(jobs[n], n == 0 && idle())) ++n;
      } catch (...) {  // the jobs taken so far are read anyway
        failed = true;
      }
    }
    asked_for_ = seen;
    may_have_jobs_ = failed || n == most;
    for (std::size_t i = 0; i < n; ++i) take(std::move(jobs[i]));
    any = any || n != 0;
    if (failed) throw std::bad_alloc();
  }
  return any;
}

void IoWorker::take(ReadJob&& job) {
  if (const ExtentJob* const e = job.extent(); e != nullptr) {
    if (is_resident(*job.file, *e))
      leave(job, Outcome::cached);
    else
      begin(std::move(job));
    return;
  }
  const ChunkJob& chunk = *job.chunk();
  using Target = ChunkSource::Target;
  Staging memory;
  // A load of a whole file shares its chunks only if they come from the cache on local disk, where each
  // process would decompress them.  Chunks that the load does not get now are read when lookups need them.
  const bool is_shared =
      chunk.load == 0 || (job.file->reads_through_sources() && !job.file->source->is_full());
  const Target target = !chunk.publishes ? Target::page_cache
                        : is_shared      ? Target::memory
                                         : Target::private_memory;
  switch (job.file->source->claim({chunk.chunk, target, chunk.snapshot, chunk.awaited}, memory)) {
    case ChunkSource::Answer::ready:
      leave(job, Outcome::cached);
      break;
    case ChunkSource::Answer::given:
      publish(job, std::move(memory));
      break;
    case ChunkSource::Answer::yours:
      begin(std::move(job), std::move(memory));
      break;
    case ChunkSource::Answer::wait:
      leave(job, Outcome::claimed);
      break;
  }
}

// Returns whether all of the extent is in the page cache.  Small extents are not checked, because a read from
// the page cache costs less.
bool IoWorker::is_resident(const WindowFile& file, const ExtentJob& job) const noexcept {
  const Extent& e = job.extent;
  return file.decision.uses_resident && e.bytes >= kWorthLooking &&
         !file.read_failed.load(std::memory_order_relaxed) &&
         file.residency().share(e.offset, e.bytes) == 1.0;
}

// Ends a job that needs no read.
void IoWorker::leave(const ReadJob& job, Outcome outcome) noexcept {
  WindowFile& file = *job.file;
  may_have_jobs_ = true;
  const std::lock_guard lock(owner_.mutex_);
  const ChunkJob* const c = job.chunk();
  if (c == nullptr) return owner_.schedule_.extent_ended(file, job.extent()->extent, 0);
  (void)file.table.finish(c->chunk, c->generation, false, NoPlaces{});
  if (c->publishes) owner_.chunks_.return_memory(file);
  if (outcome == Outcome::cached) ++file.stats.chunks_cached;
  if (outcome == Outcome::claimed) ++file.stats.chunks_claimed;
  if (c->load != 0) {
    if (outcome == Outcome::claimed && c->publishes) file.load.has_skipped = true;
    whole_load_went_on(file, *c, outcome == Outcome::cached || outcome == Outcome::claimed);
  }
  owner_.schedule_.settle(file, c->chunk, outcome, 0);
}

// Publishes a chunk whose bytes are all in `memory`.
void IoWorker::publish(const ReadJob& job, Staging memory) noexcept {
  WindowFile& file = *job.file;
  const ChunkJob& c = *job.chunk();
  may_have_jobs_ = true;
  const std::lock_guard lock(owner_.mutex_);
  const bool current = c.generation == file.table.generation();
  keeps_shared_ = true;
  const bool resident = owner_.chunks_.finish(file, c.chunk, c.generation, true, memory);
  if (resident)
    ++file.stats.chunks_given;
  else
    ++(current ? file.stats.publish_failed : file.stats.stale);
  if (c.load != 0) {
    if (resident) owner_.chunks_.note_lookups(file, c.chunk);
    whole_load_went_on(file, c, resident);
  }
  owner_.schedule_.settle(file, c.chunk,
                          resident  ? Outcome::ready
                          : current ? Outcome::mapped
                                    : Outcome::wanted,
                          0);
}

// Drops chunks that walks have passed from the page cache.  The file does not fit there, and its pages must
// not evict pages of other programs.
void IoWorker::drop_pages() noexcept {
  for (const std::unique_ptr<Lane>& l : lanes_) {
    WindowFile& file = *l->file;
    if (file.dropping.is_empty()) continue;
    std::vector<Extent> pieces;
    {
      const std::lock_guard lock(owner_.mutex_);
      pieces = file.dropping.take();
    }
    for (const Extent& e : pieces)
      (void)::posix_fadvise(file.buffered().fd(), static_cast<off_t>(e.offset), static_cast<off_t>(e.bytes),
                            POSIX_FADV_DONTNEED);
  }
}

void IoWorker::look_for_late_use() noexcept {
  const std::int64_t now = now_ns();
  if (now - late_looked_ns_ < LateUse::kEvery) return;
  late_looked_ns_ = now;
  if (!touched_) touched_.emplace(TouchedPages::open());
  rusage used{};
  (void)::getrusage(RUSAGE_SELF, &used);
  const bool faulted = std::exchange(major_faults_, used.ru_majflt) != used.ru_majflt;
  try {
    std::vector<std::shared_ptr<WindowFile>> files;
    {
      const std::lock_guard lock(owner_.mutex_);
      for (WindowFile* const f : owner_.chunks_.files())
        if (f->late_use.is_watched()) files.push_back(f->shared_from_this());
      if (files.empty() || !*touched_) watches_late_use_.store(false, std::memory_order_relaxed);
    }
    for (const std::shared_ptr<WindowFile>& f : files) look_for_late_use(*f, faulted);
  } catch (const std::bad_alloc&) {  // try again at the next check
  }
}

void IoWorker::look_for_late_use(WindowFile& file, bool faulted) noexcept {
  std::array<const std::byte*, LateUse::kMost> addresses;
  std::array<TouchedPages::Page, LateUse::kMost> pages;
  std::size_t n = 0;
  {
    const std::lock_guard lock(owner_.mutex_);
    n = file.late_use.to_look_at(addresses, faulted);
  }
  touched_->look({addresses.data(), n}, {pages.data(), n});
  const std::lock_guard lock(owner_.mutex_);
  if (!file.late_use.saw({addresses.data(), n}, {pages.data(), n})) return;
  file.late_use.end();
  if (owner_.worker_ == this && !file.load.is_going())
    (void)owner_.begin_whole_load(file, file.late_use.used_bytes());
}

void IoWorker::look_at_shared_memory() noexcept {
  const std::int64_t now = now_ns();
  if (now - shared_looked_ns_ < kLookAtShared) return;
  shared_looked_ns_ = now;
  const bool crowded = node::chunk_room().crowded;
  const std::lock_guard lock(owner_.mutex_);
  keeps_shared_ = owner_.chunks_.keeps_shared(crowded);
}

// Sleeps until there is work or a request ends.  `seen`: the count of work_ before the thread looked for
// work.
void IoWorker::sleep(std::uint32_t seen) noexcept {
  const bool looks = watches_late_use_.load(std::memory_order_relaxed);
  const std::int64_t memory = owner_.memory_.look();
  if (idle()) {
    if (scratch_ && owner_.memory_.is_nearly_full()) scratch_.reset();
    constexpr std::int64_t kLong = 3'600'000'000'000;
    const bool loads_wait = owner_.loads_wait();
    work_.wait(seen, std::min({looks ? LateUse::kEvery : kLong, keeps_shared_ ? kLookAtShared : kLong,
                               memory != 0 ? memory : kLong, loads_wait ? kLoadAgain : kLong}));
    may_have_jobs_ = may_have_jobs_ || loads_wait;
    return;
  }
  constexpr std::size_t kMost = 32;
  constexpr int kLookMs = 20;
  pollfd fds[kMost];
  fds[0] = {bell_.get(), POLLIN, 0};
  std::size_t n = 1;
  int timeout = bell_ && !looks && !keeps_shared_ ? -1 : kLookMs;
  if (memory != 0) {
    const int ms = static_cast<int>(memory / 1'000'000);
    timeout = timeout < 0 ? ms : std::min(timeout, ms);
  }
  for (const std::unique_ptr<Lane>& l : lanes_) {
    l->queues.for_each([&](const ReadQueue& queue) {
      if (queue.in_flight() == 0) return;
      const int wait = queue.poll_timeout_ms();
      if (wait >= 0 && (timeout < 0 || wait < timeout)) timeout = wait;
      if (const int fd = queue.ready_fd(); fd >= 0 && n < kMost)
        fds[n++] = {fd, POLLIN, 0};
      else
        timeout = 1;
    });
  }
  polling_.store(true);
  if (work_.now() == seen) (void)::poll(fds, n, timeout);
  polling_.store(false);
  std::uint64_t rung;
  [[maybe_unused]] const ssize_t got = ::read(bell_.get(), &rung, sizeof rung);
}

}  // namespace lmdbio::window
