#include "lmdbio/cache/prefetcher.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>

#include "lmdbio/base/config.h"
#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/log.h"
#include "lmdbio/base/memory_facts.h"
#include "lmdbio/cache/io_worker.h"
#include "lmdbio/io/engine_pread.h"
#include "lmdbio/io/file_system.h"
#include "lmdbio/io/open_anew.h"

namespace lmdbio::cache {

namespace {

constexpr std::size_t kSmallChunk = Window::kHugePage, kUsualChunk = 2 * Window::kHugePage;
/// With less memory than this, chunks are small.
constexpr std::uint64_t kLittleMemory = std::uint64_t{64} << 20;
/// Reclaimed first is what walks have left, the newest first: a walk that starts anew comes to it last.  But
/// not what was left just now, whose values programs may still hold.
constexpr std::uint64_t kJustLeft = 4;
/// A walk that has stood still while others came to so many chunks has no claim to what it had planned.
constexpr std::uint64_t kAbandoned = 64;
/// Files up to this size are kept as a whole, if they can be.
constexpr std::uint64_t kSmallFile = std::uint64_t{64} << 20;
/// No storage gives more, bytes a nanosecond.
constexpr std::uint64_t kFastest = 8;
constexpr std::int64_t kMinuteNs = 60'000'000'000;
/// So many changes of snapshot a minute that cost chunks, and a file is left to its mapping until the next.
constexpr unsigned kBusyWriter = 8;

/// Of fills, between two looks at the memory that is left.
constexpr std::uint64_t kLookEveryBytes = std::uint64_t{64} << 20;
/// Of a chunk that was filled: what is looked for when a walk comes to it, bytes.
constexpr std::uint64_t kSampleBytes = std::uint64_t{256} << 10;
constexpr double kStillThere = 0.5;

constinit SignalSafeMutex creation;  // guards what follows where it is set
constinit std::atomic<Prefetcher*> the_one{nullptr};

struct Places {
  FileCache& file;
  Staging* staging;
  bool publish(ChunkIndex i) noexcept {
    return file.window->publish(file.offset(i), file.bytes_in(i), *staging);
  }
  bool restore(ChunkIndex i) noexcept { return file.window->restore(file.offset(i), file.chunk_bytes); }
  bool restore_all() noexcept { return file.window->restore(0, file.window->length()); }
};

/// One call for all.
struct WholeWindow : Places {
  bool restore(ChunkIndex) noexcept { return false; }
};

constexpr int kLoadTries = 8;
/// Of what is reserved: a part of it is inherited by forks, and the rest is not.
constexpr std::uint64_t kAreas = 2;

/// What the kernel reads ahead on the device or mount of `fd`; 0: it does not tell.
std::uint64_t readahead_bytes(int fd) noexcept {
  struct stat at;
  if (::fstat(fd, &at) != 0) return 0;
  char path[64], text[32];
  (void)std::snprintf(path, sizeof path, "/sys/class/bdi/%u:%u/read_ahead_kb", major(at.st_dev),
                      minor(at.st_dev));
  UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
  if (!file) {  // a partition: its disk's
    (void)std::snprintf(path, sizeof path, "/sys/dev/block/%u:%u/../queue/read_ahead_kb", major(at.st_dev),
                        minor(at.st_dev));
    file = UniqueFd(::open(path, O_RDONLY | O_CLOEXEC));
  }
  if (!file) return 0;
  const ssize_t n = ::read(file.get(), text, sizeof text);
  std::uint64_t kib = 0;
  if (n > 0) (void)std::from_chars(text, text + n, kib);
  return kib << 10;
}

/// A quarter of the areas that the kernel lets a process map and that it has not mapped yet; a chunk in the
/// midst of a file's mapping makes two.
std::uint64_t areas_to_use() noexcept {
  std::uint64_t most = 65530, now = 0;
  char text[4096];
  if (const UniqueFd fd(::open("/proc/sys/vm/max_map_count", O_RDONLY | O_CLOEXEC)); fd) {
    if (const ssize_t n = ::read(fd.get(), text, sizeof text); n > 0)
      (void)std::from_chars(text, text + n, most);
  }
  if (const UniqueFd fd(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC)); fd) {
    for (ssize_t n; (n = ::read(fd.get(), text, sizeof text)) > 0;)
      now += static_cast<std::uint64_t>(std::count(text, text + n, '\n'));
  }
  return most > now ? (most - now) / 4 : 0;
}

}  // namespace

Prefetcher* Prefetcher::get() noexcept {
  if (Prefetcher* const p = existing(); p != nullptr) return p;
  const std::lock_guard lock(creation);
  if (Prefetcher* const p = existing(); p != nullptr) return p;
  auto* const made = new (std::nothrow) Prefetcher;
  the_one.store(made, std::memory_order_release);
  return made;
}

void Prefetcher::lock_creation() noexcept { creation.lock(); }
void Prefetcher::unlock_creation() noexcept { creation.unlock(); }

Prefetcher* Prefetcher::existing() noexcept { return the_one.load(std::memory_order_acquire); }

Prefetcher::Prefetcher() {
  const Config& c = config();
  limit_is_share_ = c.memory_percent != 0;
  limit_ = limit_is_share_ ? memory_facts().total / 100 * c.memory_percent : c.memory_bytes;
  chunk_bytes_ = limit_ < kLittleMemory ? kSmallChunk : kUsualChunk;
  if (limit_ < 2 * chunk_bytes_) limit_ = 0;
  most_areas_ = areas_to_use();
}

Result<std::shared_ptr<FileCache>> Prefetcher::open(const std::shared_ptr<Window>& window,
                                                    const Origin& origin, const char* name,
                                                    std::uint64_t used_bytes,
                                                    std::uint64_t snapshot) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      for (FileCache* const f : files_) {
        if (f->window == window) return join(*f);
      }
    }
    const IoMode mode = config().io;
    // What is published has to be given back without a descriptor.
    bool wants_direct = may_read_directly(Access::walk, mode, limit_);
    if (wants_direct) {
      const std::lock_guard lock(mutex_);
      wants_direct = window->prepare_restore(used_bytes);
    }
    Result<OpenedAnew> opened = open_anew(origin, {wants_direct, true});
    if (!opened) return opened.error();
    OpenedAnew& files = opened.value();
    const Result<std::uint64_t> size = files.buffered.size();
    if (!size) return size.error();
    bool local = true;
    std::uint64_t readahead = 0;
    (void)files.buffered.with_fd([&](int fd) noexcept {
      local = is_local_file_system(fd);
      readahead = readahead_bytes(fd);
    });
    ReadFacts facts;
    facts.setting = mode;
    facts.local = local;
    facts.direct_works = files.direct.has_value();
    facts.can_map = !window->anonymous();
    facts.kernel_readahead = readahead;
    facts.memory_limit = limit_;
    facts.file_bytes = used_bytes;
    facts.available = memory_facts().available;
    const ReadDecision decision = choose_read_path(Access::walk, facts);
    Result<ChunkTable> table =
        ChunkTable::make(static_cast<std::uint32_t>((window->length() + chunk_bytes_ - 1) / chunk_bytes_));
    if (!table) return table.error();
    const auto file =
        std::make_shared<FileCache>(window, std::move(files.buffered), std::move(files.direct), origin.fd,
                                    decision, std::move(table).value(), chunk_bytes_, name);
    file->file_bytes.store(size.value(), std::memory_order_relaxed);
    file->local = local;
    file->readahead = readahead;
    file->exact = std::move(files.exact);
    file->drop_behind = decision.drops_behind;
    (void)file->table.advance(snapshot, Places{*file, nullptr});
    const std::lock_guard lock(mutex_);
    for (FileCache* const f : files_) {  // another thread was faster
      if (f->window == window) return join(*f);
    }
    files_.push_back(file.get());
    file->users = 1;
    if (log_enabled(LogLevel::info))
      log_line(LogLevel::info, "%s: %s: %s", name,
               decision == ReadPath::direct       ? "direct reads"
               : decision == ReadPath::page_cache ? "buffered reads"
                                                  : "page faults",
               decision.reason);
    return file;
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
}

std::shared_ptr<FileCache> Prefetcher::join(FileCache& file) noexcept {
  ++file.users;
  std::shared_ptr<FileCache> shared = file.shared_from_this();
  file.kept.reset();
  return shared;
}

void Prefetcher::close(const std::shared_ptr<FileCache>& file) noexcept {
  IoWorker* stopped = nullptr;
  std::shared_ptr<Window> window;  // its addresses go after the lock
  {
    const std::lock_guard lock(mutex_);
    if (--file->users != 0) return;
    for (Walk* const w : walks_) {
      if (&w->file() != file.get()) continue;
      w->plan_.clear();
      w->extents_.clear();
      w->next_extent_ = 0;
    }
    file->load.path = ReadPath::none;
    if (file->anonymous) (void)empty(*file);
    while (!file->residents.empty() && reclaim(*file, file->residents.size() - 1)) {
    }
    if (!file->residents.empty()) {
      if (!file->table.drop_all(Places{*file, nullptr}).ok()) {
        file->kept = file;
        return;
      }
      forget_residents(*file);
    }
    std::erase(files_, file.get());
    window = std::move(file->window);
    if (files_.empty()) stopped = std::exchange(worker_, nullptr);
    if (stopped != nullptr)
      stopped->stop();
    else if (worker_ != nullptr)
      worker_->wake();  // it lets go of the file
  }
  if (stopped == nullptr) return;
  {
    const AsyncSignalsAllowed program;
    stopped->join();
  }
  delete stopped;
}

Status Prefetcher::advance(const Window& window, std::uint64_t snapshot, std::uint64_t file_bytes) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(files_.begin(), files_.end(),
                                  [&window](const FileCache* f) { return f->window.get() == &window; });
  if (found == files_.end()) return {};
  FileCache& file = **found;
  if (snapshot <= file.table.newest_snapshot()) return {};
  const std::size_t residents = file.residents.size();
  if (const Status st = file.table.advance(snapshot, Places{file, nullptr}); !st.ok()) return st;
  file.file_bytes.store(file_bytes, std::memory_order_relaxed);
  if (file.direct)
    (void)file.window->prepare_restore(file_bytes);  // no addresses: what is new is not published
  if (file.load.path == ReadPath::direct) file.load.path = ReadPath::none;
  if (residents == 0) return {};
  forget_residents(file);
  ++file.stats.snapshots;
  for (Walk* const w : walks_) {
    if (&w->file() != &file) continue;
    for (Walk::Entry& e : w->plan_)
      if (e.outcome == Walk::Outcome::ready) e.outcome = Walk::Outcome::wanted;
  }
  if (worker_ != nullptr) worker_->wake();
  const std::int64_t now = now_ns();
  if (now - file.changes_since_ns > kMinuteNs) {
    file.changes_since_ns = now;
    file.changes = 0;
  }
  ++file.changes;
  return {};
}

void Prefetcher::forget_residents(FileCache& file) noexcept {
  used_ -= file.residents.size() * file.chunk_bytes;
  resident_areas_ -= 2 * file.residents.size();
  file.stats.reclaimed += file.residents.size();
  file.residents.clear();
}

void Prefetcher::add(Walk& walk) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    walks_.push_back(&walk);
  } catch (...) {  // out of memory: it is not served, and go_on() finds that out
  }
}

void Prefetcher::remove(Walk& walk) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase(walks_, &walk);
}

std::size_t Prefetcher::most_wishes(const FileCache& file) noexcept {
  const std::lock_guard lock(mutex_);
  constexpr std::size_t kMost = 64, kLeast = 8, kUncounted = 16;
  if (file.path() != ReadPath::direct) return kUncounted;
  const auto chunks = static_cast<std::size_t>(limit_ / file.chunk_bytes);
  const auto going =
      std::count_if(walks_.begin(), walks_.end(), [this](const Walk* w) { return goes_on(*w); });
  const auto walks = static_cast<std::size_t>(std::max<std::ptrdiff_t>(going, 1));
  // More than arrives while one request is on its way only costs memory.
  const std::size_t useful = std::clamp(
      static_cast<std::size_t>(file.least_latency_ns * kFastest / file.chunk_bytes), kLeast, kMost);
  return std::clamp<std::size_t>(chunks * 3 / 4 / walks, 1, useful);
}

bool Prefetcher::all_cached(const Walk& walk) noexcept {
  const std::lock_guard lock(mutex_);
  return !walk.plan_.empty() && std::all_of(walk.plan_.begin(), walk.plan_.end(), [](const Walk::Entry& e) {
    return e.outcome == Walk::Outcome::cached;
  });
}

Status Prefetcher::go_on(Walk& walk, const Wishes& wishes, ChunkIndex first, ChunkIndex last) noexcept {
  walk.came_to_filled_.reset();
  const Status st = plan_and_wait(walk, wishes, first, last);
  // Before the program touches it, which brings it back.
  if (walk.came_to_filled_) look_for_filled(walk.file(), *walk.came_to_filled_);
  return st;
}

Status Prefetcher::plan_and_wait(Walk& walk, const Wishes& wishes, ChunkIndex first,
                                 ChunkIndex last) noexcept {
  FileCache& file = walk.file();
  std::unique_lock lock(mutex_);
  if (file.users == 0) return {};
  if (raw(first) <= raw(last) && std::exchange(walk.at_, first) != first) ++plans_;
  walk.last_ = plans_;
  try {
    if (std::find(walks_.begin(), walks_.end(), &walk) == walks_.end()) walks_.push_back(&walk);
    std::vector<Walk::Entry> plan;
    plan.reserve(wishes.chunks.size());
    for (const ChunkIndex c : wishes.chunks) {
      const auto old = std::find_if(walk.plan_.begin(), walk.plan_.end(),
                                    [c](const Walk::Entry& e) { return e.chunk == c; });
      Walk::Entry e;
      e.chunk = c;
      if (old != walk.plan_.end() && old->outcome != Walk::Outcome::failed) e = *old;
      e.awaited = raw(c) >= raw(first) && raw(c) <= raw(last);
      const ChunkState state = file.table.state(c);
      if (e.outcome == Walk::Outcome::ready && state != ChunkState::resident)
        e.outcome = Walk::Outcome::wanted;
      if (e.outcome == Walk::Outcome::wanted && state == ChunkState::resident)
        e.outcome = Walk::Outcome::ready;
      if (e.awaited && !walk.has_come_to(c)) {
        file.stats.asked += file.bytes_in(c);
        if (e.outcome == Walk::Outcome::filled) walk.came_to_filled_ = c;
      }
      plan.push_back(e);
    }
    for (const Walk::Entry& e : walk.plan_)  // what the walk has left
      if ((e.outcome == Walk::Outcome::mapped || e.outcome == Walk::Outcome::filled) && file.drop_behind &&
          std::find(wishes.chunks.begin(), wishes.chunks.end(), e.chunk) == wishes.chunks.end())
        drop_behind(file, e.chunk);
    walk.plan_.swap(plan);
    walk.extents_.assign(wishes.extents.begin(), wishes.extents.end());
    walk.next_extent_ = 0;
    walk.awaited_ = wishes.awaited;  // from now on: its read may fail before await() is called
    walk.extent_error_ = 0;
  } catch (...) {
    walk.plan_.clear();
    walk.extents_.clear();
    return {};  // out of memory: the mapping gives what is needed
  }
  for (FileCache::Resident& r : file.residents) {
    const auto e = std::find_if(walk.plan_.begin(), walk.plan_.end(),
                                [&r](const Walk::Entry& w) { return w.chunk == r.chunk; });
    if (e == walk.plan_.end()) continue;
    r.left = plans_;
    if (e->awaited) r.used = true;
  }
  // Also where nothing new is wanted, but what is needed now is still being read.
  const bool work =
      std::any_of(walk.plan_.begin(), walk.plan_.end(),
                  [&walk](const Walk::Entry& e) {
                    return e.outcome == Walk::Outcome::wanted || (e.awaited && !walk.settled(e));
                  }) ||
      !walk.extents_.empty();
  if (!work) return {};
  if (file.changes >= kBusyWriter && now_ns() - file.changes_since_ns <= kMinuteNs) {
    for (Walk::Entry& e : walk.plan_)
      if (e.outcome == Walk::Outcome::wanted) e.outcome = Walk::Outcome::mapped;
    return {};
  }
  if (!ensure_worker()) {
    for (Walk::Entry& e : walk.plan_)
      if (e.outcome == Walk::Outcome::wanted) e.outcome = Walk::Outcome::mapped;
    return {};
  }
  worker_->wake();

  Stall stall;
  for (;;) {
    const auto open = std::find_if(walk.plan_.begin(), walk.plan_.end(),
                                   [&walk](const Walk::Entry& e) { return e.awaited && !walk.settled(e); });
    if (open == walk.plan_.end()) break;
    wait(walk, lock, file.offset(open->chunk), stall);
  }
  end_wait(walk, stall);
  Status st;
  for (const Walk::Entry& e : walk.plan_)
    if (e.awaited && e.outcome == Walk::Outcome::failed && st.ok()) st = Status::from_errno(e.error);
  if (!st.ok())
    for (Walk::Entry& e : walk.plan_)
      if (e.outcome == Walk::Outcome::failed) e.outcome = Walk::Outcome::wanted;
  return st;
}

void Prefetcher::wait(Walk& walk, std::unique_lock<SignalSafeMutex>& lock, std::uint64_t offset,
                      Stall& stall) noexcept {
  const std::int64_t now = now_ns();
  if (stall.begun == 0) stall.begun = now;
  const unsigned limit = config().stall_seconds;
  if (limit != 0 && !stall.told && now - stall.begun >= std::int64_t{limit} * 1'000'000'000) {
    stall.told = true;
    log_line(LogLevel::warn, "%s: a read at byte %" PRIu64 " has not come back for %u seconds; still waiting",
             walk.file().name.c_str(), offset, limit);
  }
  const std::uint32_t seen = walk.settled_.now();
  walk.waiting_ = true;
  lock.unlock();
  constexpr std::int64_t kLook = 250'000'000;
  {
    const AsyncSignalsAllowed program;
    walk.settled_.wait(seen, kLook);
  }
  lock.lock();
}

void Prefetcher::end_wait(Walk& walk, const Stall& stall) noexcept {
  walk.waiting_ = false;
  if (stall.begun == 0) return;
  ++walk.file().stats.stalls;
  walk.file().stats.stall_ns += static_cast<std::uint64_t>(now_ns() - stall.begun);
}

namespace {

bool overlap(const WantedExtent& a, const WantedExtent& b) noexcept {
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

}  // namespace

bool Prefetcher::is_reading(const FileCache& file, const WantedExtent& extent) noexcept {
  const std::lock_guard lock(mutex_);
  return std::any_of(file.reading.begin(), file.reading.end(),
                     [&extent](const WantedExtent& e) { return overlap(e, extent); });
}

bool Prefetcher::is_coming(Walk& walk, const WantedExtent& extent) const noexcept {
  const auto is_part = [&extent](const WantedExtent& e) { return overlap(e, extent); };
  const auto wanted = walk.extents_.begin() + static_cast<std::ptrdiff_t>(walk.next_extent_);
  const FileCache& file = walk.file();
  return std::any_of(
             wanted, walk.extents_.end(),
             [&](const WantedExtent& e) { return is_part(e) && walk.asked_.first_missing(e).bytes != 0; }) ||
         std::any_of(file.reading.begin(), file.reading.end(), is_part);
}

Status Prefetcher::await(Walk& walk) noexcept {
  FileCache& file = walk.file();
  std::unique_lock lock(mutex_);
  if (file.users == 0) return {};
  file.stats.asked += walk.awaited_.bytes;
  Stall stall;
  while (walk.extent_error_ == 0 && is_coming(walk, walk.awaited_)) {
    if (!ensure_worker()) break;
    if (stall.begun == 0) worker_->wake();
    wait(walk, lock, walk.awaited_.offset, stall);
  }
  end_wait(walk, stall);
  walk.awaited_ = {};
  return walk.extent_error_ == 0 ? Status() : Status::from_errno(walk.extent_error_);
}

void Prefetcher::forget_extents(Walk& walk) noexcept {
  const std::lock_guard lock(mutex_);
  walk.asked_.clear();
}

std::uint64_t Prefetcher::asked_bytes(const Walk& walk, ChunkIndex chunk) noexcept {
  const std::lock_guard lock(mutex_);
  const FileCache& file = walk.file();
  return walk.asked_.bytes_of({file.offset(chunk), file.chunk_bytes});
}

bool Prefetcher::ensure_worker() noexcept {
  if (worker_ != nullptr) return true;
  auto* const made = new (std::nothrow) IoWorker(*this);
  if (made == nullptr) return false;
  if (!made->start()) {
    delete made;
    return false;
  }
  worker_ = made;
  return true;
}

// --- what the worker does next ----------------------------------------------------------------------------

bool Prefetcher::next_job(Job& job, bool idle) {
  for (std::size_t k = 0; k < walks_.size(); ++k) {
    const std::size_t at = (next_walk_ + k) % walks_.size();
    Walk& walk = *walks_[at];
    FileCache& file = walk.file();
    for (Walk::Entry& e : walk.plan_) {
      if (e.outcome != Walk::Outcome::wanted) continue;
      const ChunkState state = file.table.state(e.chunk);
      if (state == ChunkState::filling) {
        e.outcome = Walk::Outcome::filling;
        continue;
      }
      if (state == ChunkState::resident || file.bytes_in(e.chunk) == 0) {
        e.outcome = state == ChunkState::resident ? Walk::Outcome::ready : Walk::Outcome::mapped;
        if (e.awaited && walk.waiting_) walk.settled_.notify();
        continue;
      }
      if (file.filled >= kLookEveryBytes) look_at_memory(file);
      const bool direct = file.path() == ReadPath::direct;
      if (direct && !take_memory(file, e.awaited)) {
        if (!e.awaited) break;  // and what comes later in its plan
        if (idle) {
          e.outcome = Walk::Outcome::mapped;
          if (walk.waiting_) walk.settled_.notify();
        }
        continue;
      }
      job.file = file.shared_from_this();
      job.chunk = e.chunk;
      try {
        job.generation = file.table.start(e.chunk);
      } catch (...) {
        if (direct) return_memory(file);
        throw;
      }
      job.extent = {};
      job.has_memory = direct;
      job.whole = false;
      if (!direct) file.filled += file.bytes_in(e.chunk);
      e.outcome = Walk::Outcome::filling;
      next_walk_ = at + 1;
      return true;
    }
  }
  return next_extent(job) || next_of_load(job, idle);
}

void Prefetcher::give_up() noexcept {
  for (FileCache* const f : files_) f->load.path = ReadPath::none;
  for (Walk* const w : walks_) {
    for (Walk::Entry& e : w->plan_)
      if (e.outcome == Walk::Outcome::wanted) e.outcome = Walk::Outcome::mapped;
    w->next_extent_ = w->extents_.size();
    if (w->waiting_) w->settled_.notify();
  }
}

bool Prefetcher::next_extent(Job& job) {
  for (std::size_t k = 0; k < walks_.size(); ++k) {
    const std::size_t at = (next_walk_ + k) % walks_.size();
    Walk& walk = *walks_[at];
    while (walk.next_extent_ < walk.extents_.size()) {
      // Other plans had other bounds: what is asked for is what none of them has asked for.
      const WantedExtent e = walk.asked_.first_missing(walk.extents_[walk.next_extent_]);
      if (e.bytes == 0) {
        ++walk.next_extent_;
        continue;
      }
      walk.asked_.add(e);
      walk.file().reading.push_back(e);
      job.file = walk.file().shared_from_this();
      job.extent = e;
      job.has_memory = job.whole = false;
      next_walk_ = at + 1;
      return true;
    }
  }
  return false;
}

void Prefetcher::extent_ended(FileCache& file, const WantedExtent& extent, int error) noexcept {
  if (const auto e = std::find(file.reading.begin(), file.reading.end(), extent); e != file.reading.end())
    file.reading.erase(e);
  if (error != 0) file.read_failed.store(true, std::memory_order_relaxed);
  for (Walk* const w : walks_) {
    if (&w->file() != &file) continue;
    if (error != 0) w->asked_.remove(extent);
    if (w->awaited_.bytes == 0 || !overlap(w->awaited_, extent)) continue;
    if (error != 0) w->extent_error_ = error;
    if (w->waiting_) w->settled_.notify();
  }
}

// --- memory -----------------------------------------------------------------------------------------------

// A limit that is a share of the machine's memory is for one process; where others have taken theirs, this
// one grows no further, as long as an eighth is not free.
std::uint64_t Prefetcher::limit_now() noexcept {
  constexpr std::uint64_t kFree = std::uint64_t{256} << 20, kStep = std::uint64_t{64} << 20;
  constexpr std::int64_t kLookAgainNs = 10'000'000;
  if (!limit_is_share_ || used_ < kFree) return limit_;
  if (used_ + chunk_bytes_ <= grow_to_) return std::min(limit_, grow_to_);
  const std::int64_t now = now_ns();
  if (now - checked_ns_ < kLookAgainNs && grow_to_ <= used_) return std::min(limit_, grow_to_);
  checked_ns_ = now;
  const MemoryFacts facts = memory_facts();
  const bool room = facts.available > facts.total / 8 + kStep;
  grow_to_ = std::max(kFree, room ? used_ + kStep : used_);
  return std::min(limit_, grow_to_);
}

void Prefetcher::complain_if_full(const FileCache& file) noexcept {
  if (used_ <= limit_ || std::exchange(told_full_, true)) return;
  log_line(LogLevel::warn,
           "%s: cannot be mapped, and what was read of it needs more memory than LMDBIO_MEMORY (%" PRIu64
           " MiB)",
           file.name.c_str(), limit_ >> 20);
}

void Prefetcher::look_at_memory(FileCache& file) noexcept {
  file.filled = 0;
  if (!file.decision.uses_resident || file.drop_behind) return;
  if (!still_fits_page_cache(file.file_bytes.load(std::memory_order_relaxed), memory_facts().available))
    leave_page_cache(file, "there is no room for it in the page cache any more");
}

void Prefetcher::look_for_filled(FileCache& file, ChunkIndex chunk) noexcept {
  if (!file.decision.uses_resident || file.path() != ReadPath::page_cache) return;
  const std::uint64_t bytes = file.bytes_in(chunk);
  // Without the lock: the question may go to another thread.
  const auto share =
      file.residency.share(file.offset(chunk) + bytes / 2, std::min(kSampleBytes, bytes - bytes / 2));
  const std::lock_guard lock(mutex_);
  if (!share || file.users == 0) return;
  const bool gone = *share < kStillThere;
  file.came_to += bytes;
  if (gone) {
    file.stats.vanished += bytes;
    file.came_to_nothing += bytes;
  }
  if (page_cache_loses(file.came_to_nothing, file.stats.vanished))
    leave_page_cache(file, "what is brought into the page cache vanishes");
  if (file.came_to >= kLookEveryBytes) file.came_to = file.came_to_nothing = 0;
}

// What is in the page cache is still taken from there.
void Prefetcher::leave_page_cache(FileCache& file, const char* why) noexcept {
  if (file.path() != ReadPath::page_cache) return;
  if (!file.direct || limit_ == 0) {
    file.drop_behind = true;
    return;
  }
  file.go_direct();
  ++file.stats.went_direct;
  log_line(LogLevel::info, "%s: direct reads from now on: %s", file.name.c_str(), why);
}

bool Prefetcher::take_memory(FileCache& file, bool urgent) noexcept {
  if (file.anonymous) return true;  // counted when it is published
  // What walks have left goes, unless it is likely to be found again.
  const std::uint64_t size = file.file_bytes.load(std::memory_order_relaxed);
  if (size > kSmallFile && (!file.comes_around || size / 2 > limit_)) {
    const auto oldest = std::min_element(file.residents.begin(), file.residents.end(),
                                         [](const auto& x, const auto& y) { return x.left < y.left; });
    if (oldest != file.residents.end() && plans_ - oldest->left >= kJustLeft && !planned(file, oldest->chunk))
      (void)reclaim(file, static_cast<std::size_t>(oldest - file.residents.begin()));
  }
  for (;;) {
    const bool areas = resident_areas_ + 2 <= most_areas_;
    if (areas && used_ + file.chunk_bytes <= limit_now()) break;
    if (!reclaim_one(false) && !(urgent && reclaim_one(true))) return false;
  }
  used_ += file.chunk_bytes;
  return true;
}

bool Prefetcher::reserve(std::uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  if (reserved_ + bytes > limit_ / 4 * 3 || resident_areas_ + kAreas > most_areas_) return false;
  while (used_ + bytes > limit_now()) {
    if (!reclaim_one(false)) return false;
  }
  used_ += bytes;
  reserved_ += bytes;
  resident_areas_ += kAreas;
  reserved_areas_ += kAreas;
  return true;
}

// What a forked child inherited is not counted there.
void Prefetcher::give_back(std::uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  bytes = std::min(bytes, reserved_);
  used_ -= bytes;
  reserved_ -= bytes;
  const std::uint64_t areas = std::min(kAreas, reserved_areas_);
  resident_areas_ -= areas;
  reserved_areas_ -= areas;
}

bool Prefetcher::goes_on(const Walk& walk) const noexcept { return plans_ - walk.last_ <= kAbandoned; }

bool Prefetcher::planned(const FileCache& file, ChunkIndex chunk) const noexcept {
  return std::any_of(walks_.begin(), walks_.end(), [&](const Walk* w) {
    return &w->file() == &file && goes_on(*w) &&
           std::any_of(w->plan_.begin(), w->plan_.end(),
                       [chunk](const Walk::Entry& e) { return e.chunk == chunk; });
  });
}

bool Prefetcher::reclaim_one(bool even_planned) noexcept {
  FileCache* best_file = nullptr;
  std::size_t best = 0;
  // Never used and no longer planned; left, the newest but for those just left; the oldest of these; then,
  // where a walk waits for memory, what is planned and not awaited, the last in its plan.
  int best_rank = 0;
  std::uint64_t best_key = 0;
  for (FileCache* const f : files_) {
    if (f->anonymous) continue;
    for (std::size_t i = 0; i < f->residents.size(); ++i) {
      const FileCache::Resident& r = f->residents[i];
      int rank;
      std::uint64_t key;
      const std::uint64_t age = plans_ - r.left;
      if (planned(*f, r.chunk)) {
        if (!even_planned) continue;
        bool awaited = false;
        key = 0;
        for (const Walk* const w : walks_) {
          if (&w->file() != f) continue;
          for (std::size_t at = 0; at < w->plan_.size(); ++at) {
            if (w->plan_[at].chunk != r.chunk) continue;
            awaited = awaited || w->plan_[at].awaited;
            key = std::max<std::uint64_t>(key, at);
          }
        }
        rank = awaited ? 1 : 2;
      } else if (age < kJustLeft) {
        rank = r.used ? 4 : 3;  // a plan that was cut short leaves what is needed soon
        key = age;
      } else {
        rank = r.used ? 5 : 6;
        key = r.used ? r.left : age;
      }
      if (rank < best_rank || (rank == best_rank && key <= best_key && best_file != nullptr)) continue;
      best_rank = rank;
      best_key = key;
      best_file = f;
      best = i;
    }
  }
  if (best_file == nullptr) return false;
  if (even_planned && best_rank <= 2) ++best_file->stats.stole;
  return reclaim(*best_file, best);
}

bool Prefetcher::reclaim(FileCache& file, std::size_t resident) noexcept {
  const FileCache::Resident r = file.residents[resident];
  if (!file.table.reclaim(r.chunk, Places{file, nullptr})) return false;
  file.residents.erase(file.residents.begin() + static_cast<std::ptrdiff_t>(resident));
  used_ -= file.chunk_bytes;
  resident_areas_ -= 2;
  ++file.stats.reclaimed;
  if (!r.used) file.stats.wasted += file.bytes_in(r.chunk);
  for (Walk* const w : walks_) {
    if (&w->file() != &file) continue;
    for (Walk::Entry& e : w->plan_)
      if (e.chunk == r.chunk && e.outcome == Walk::Outcome::ready) e.outcome = Walk::Outcome::mapped;
  }
  return true;
}

// The program's own page cache is not to push out everybody else's.
void Prefetcher::drop_behind(FileCache& file, ChunkIndex chunk) noexcept {
  const std::uint64_t at = file.offset(chunk), bytes = file.bytes_in(chunk);
  if (bytes == 0 || planned(file, chunk)) return;
  // Pages that are mapped stay in the cache.
  (void)::madvise(const_cast<std::byte*>(file.window->base()) + at, bytes, MADV_DONTNEED);
  file.dropping.push_back({at, bytes});  // by the I/O thread, which has the descriptor
}

void Prefetcher::settle(FileCache& file, ChunkIndex chunk, Walk::Outcome outcome, int error) noexcept {
  for (Walk* const w : walks_) {
    if (&w->file() != &file) continue;
    bool awaited = false;
    for (Walk::Entry& e : w->plan_) {
      if (e.chunk != chunk || w->settled(e)) continue;
      e.outcome = outcome;
      e.error = error;
      awaited = awaited || e.awaited;
    }
    if (awaited && w->waiting_) w->settled_.notify();
  }
}

bool Prefetcher::finish(FileCache& file, ChunkIndex chunk, ChunkTable::Generation generation, bool good,
                        Staging& staging) noexcept {
  try {
    file.residents.reserve(file.residents.size() + 1);
  } catch (...) {
    good = false;
  }
  const bool open = file.users != 0;
  if (!file.table.finish(chunk, generation, good && open, Places{file, &staging})) {
    staging = Staging();
    return_memory(file);
    return false;
  }
  if (file.anonymous) {
    used_ += file.chunk_bytes;
    complain_if_full(file);
  }
  bool used = false;
  for (const Walk* const w : walks_) {
    if (&w->file() != &file) continue;
    for (const Walk::Entry& e : w->plan_) used = used || (e.chunk == chunk && e.awaited);
  }
  file.residents.push_back({chunk, used, plans_});
  resident_areas_ += 2;
  ++file.stats.published;
  file.stats.most_areas = std::max(file.stats.most_areas, resident_areas_);
  file.stats.most_resident = std::max<std::uint64_t>(file.stats.most_resident, file.residents.size());
  return true;
}

void Prefetcher::use_readahead(FileCache& file, bool on) noexcept {
  const std::lock_guard lock(mutex_);
  const unsigned before = file.readahead_walks;
  file.readahead_walks += on ? 1u : ~0u;
  if (file.window != nullptr && (before == 0) != (file.readahead_walks == 0)) file.window->use_readahead(on);
}

void Prefetcher::note_epoch(FileCache& file) noexcept {
  const std::lock_guard lock(mutex_);
  file.comes_around = true;
}

void Prefetcher::note_keys(FileCache& file) noexcept {
  const std::lock_guard lock(mutex_);
  ++file.stats.key_walks;
}

void Prefetcher::note_sparse(FileCache& file) noexcept {
  const std::lock_guard lock(mutex_);
  ++file.stats.sparse_plans;
}

void Prefetcher::note_strides(FileCache& file, const ReadStats& more) noexcept {
  const std::lock_guard lock(mutex_);
  file.stats.stride_walks += more.stride_walks;
  file.stats.predicted += more.predicted;
  file.stats.predicted_right += more.predicted_right;
  file.stats.predicted_wrong += more.predicted_wrong;
}

bool Prefetcher::empty(FileCache& file) noexcept {
  for (Walk* const w : walks_) {  // of transactions that have ended
    if (&w->file() != &file) continue;
    w->plan_.clear();
    w->extents_.clear();
    w->next_extent_ = 0;
  }
  if (!file.table.drop_all(WholeWindow{{file, nullptr}}).ok()) return false;
  used_ -= file.residents.size() * file.chunk_bytes;
  resident_areas_ -= 2 * file.residents.size();
  file.residents.clear();
  return true;
}

Status Prefetcher::load(FileCache& file, ChunkIndex chunk) noexcept {
  const AsyncSignalsBlocked fork_safe;  // a child would not have the staging that is read into
  std::unique_lock lock(mutex_);
  for (int tries = 0;;) {
    const ChunkState state = file.table.state(chunk);
    if (state == ChunkState::resident) return {};
    if (state == ChunkState::filling) {  // by the worker, or another thread in here
      const std::uint32_t seen = loaded_.now();
      lock.unlock();
      constexpr std::int64_t kLook = 20'000'000;
      {
        const AsyncSignalsAllowed program;
        loaded_.wait(seen, kLook);
      }
      lock.lock();
      continue;
    }
    const std::uint64_t bytes = file.bytes_in(chunk);
    if (bytes == 0) return Status::from_errno(EIO);
    ChunkTable::Generation generation;
    try {
      generation = file.table.start(chunk);
    } catch (...) {
      return Status::from_errno(ENOMEM);
    }
    (void)take_memory(file, true);
    const unsigned forks = this->forks();
    lock.unlock();
    Result<Staging> made = Staging::make(file.chunk_bytes);
    Status st = made ? Status() : made.error();
    Staging staging;
    if (made) {
      staging = std::move(made).value();
      st = Status::from_errno(EBADF);
      (void)file.buffered.with_fd([&](int) noexcept {
        PreadEngine engine(file.buffered);
        st = read_fully(engine, file.offset(chunk), {staging.data(), bytes});
      });
    }
    lock.lock();
    if (forks != this->forks()) {  // a handler has forked, and this is the child: the chunk is not being read
      staging.forget();
      continue;
    }
    const bool published = finish(file, chunk, generation, st.ok(), staging);
    loaded_.notify();
    // Walks that wait for it: what was not published they read for themselves.
    settle(file, chunk, published ? Walk::Outcome::ready : Walk::Outcome::wanted, 0);
    if (!published && worker_ != nullptr) worker_->wake();
    if (!st.ok()) {
      ++file.stats.read_failed;
      return st;
    }
    file.stats.read += bytes;
    file.stats.asked += bytes;
    if (published) return {};
    if (file.users == 0) return Status::from_errno(EBADF);
    if (++tries > kLoadTries) return Status::from_errno(ENOMEM);
  }
}

ReadStats Prefetcher::stats(const FileCache& file) noexcept {
  const std::lock_guard lock(mutex_);
  return file.stats;
}

std::uint64_t Prefetcher::memory_used() noexcept {
  const std::lock_guard lock(mutex_);
  return used_;
}

void Prefetcher::after_fork_in_child() noexcept {
  worker_ = nullptr;  // leaked: what it holds, threads and descriptors, is the parent's
  for (FileCache* const f : files_) {
    f->table.forget_fills();
    f->stats = {};
    f->load = {};
    f->reading.clear();
    f->dropping.clear();
    if (!f->anonymous) {
      // Also where a piece could not be told from the file: one call for all.
      if (f->table.drop_all(WholeWindow{{*f, nullptr}}).ok()) f->residents.clear();
    }
  }
  forks_.fetch_add(1, std::memory_order_relaxed);
  used_ = reserved_ = reserved_areas_ = 0;
  resident_areas_ = 0;
  for (const FileCache* const f :
       files_) {  // inherited: of files that cannot be mapped, or that could not be restored
    used_ += f->residents.size() * f->chunk_bytes;
    resident_areas_ += 2 * f->residents.size();
  }
  for (Walk* const w : walks_) {
    w->plan_.clear();
    w->extents_.clear();
    w->next_extent_ = 0;
    w->asked_.clear();
    w->waiting_ = false;
  }
  mutex_.unlock();
}

}  // namespace lmdbio::cache
