#include "lmdbio/window/prefetcher.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <new>
#include <utility>

#include "lmdbio/base/config.h"
#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/log.h"
#include "lmdbio/base/memory_facts.h"
#include "lmdbio/gather/needed_pages.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/window/io_worker.h"
#include "lmdbio/window/path_change.h"
#include "lmdbio/window/whole_load.h"

namespace lmdbio::window {

namespace {

/// Upper limit of the throughput of storage, in bytes per ns.
constexpr std::uint64_t kFastest = 8;
constexpr std::int64_t kMinuteNs = 60'000'000'000;
/// After this many snapshot changes in a minute that evicted chunks, a file is left to page faults until
/// the minute is over.
constexpr unsigned kBusyWriter = 8;

constinit SignalSafeMutex creation;  // guards the_one while it is set
constinit std::atomic<Prefetcher*> the_one{nullptr};

/// How often a chunk is read again that could not be published.
constexpr int kReadTries = 8;
/// How often another process may say that it has read a chunk without the chunk being there.
constexpr unsigned kMostGiven = 4;
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

Result<std::shared_ptr<FileCache>> Prefetcher::open(const std::shared_ptr<Window>& window,
                                                    const Origin& origin, const char* name,
                                                    std::uint64_t used_bytes,
                                                    std::uint64_t snapshot) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      for (FileCache* const f : chunks_.files()) {
        if (f->window == window) return join(*f);
      }
    }
    const IoMode mode = config().io;
    // Published chunks must be given back to the file without a descriptor.
    bool wants_direct = may_read_directly(mode, memory_limit());
    if (wants_direct) {
      const std::lock_guard lock(mutex_);
      wants_direct = window->prepare_restore(used_bytes);
    }
    const Result<std::shared_ptr<const OpenFile>> opened =
        OpenFile::get(origin, wants_direct ? OpenFile::With::direct : OpenFile::With::buffered_alone);
    if (!opened) return opened.error();
    const OpenFile& on = *opened.value();
    const Result<std::uint64_t> size = on.base().size();
    if (!size) return size.error();
    const File* const direct = wants_direct ? on.direct() : nullptr;
    ReadFacts facts;
    facts.setting = mode;
    facts.node = config().node;
    facts.local = on.local();
    facts.direct_works = direct != nullptr;
    facts.can_map = window->has_file();
    facts.kernel_readahead = on.readahead();
    facts.memory_limit = memory_limit();
    facts.file_bytes = used_bytes;
    facts.available = memory_facts().available;
    const ReadDecision decision = choose_read_path(Access::walk, facts);
    const std::size_t chunk = chunks_.chunk_bytes();
    Result<ChunkTable> table =
        ChunkTable::make(static_cast<std::uint32_t>((window->capacity() + chunk - 1) / chunk));
    if (!table) return table.error();
    const std::shared_ptr<FileCache> file =
        facts.can_map ? std::make_shared<FileCache>(window, opened.value(), direct, origin.fd, decision,
                                                    std::move(table).value(), chunk, name)
                      : std::make_shared<UnmappedFileCache>(window, opened.value(), direct, origin.fd,
                                                            decision, std::move(table).value(), chunk, name);
    // A file system may report that a file has grown before it can be read.  Without a mapping, a chunk
    // that cannot be read completely cannot be used.  So only the bytes that the snapshot needs count here.
    file->file_bytes.store(facts.can_map ? window->hold(size.value()) : std::min(size.value(), used_bytes),
                           std::memory_order_relaxed);
    file->used_bytes = std::min(used_bytes, size.value());
    file->source = file_source(*file);
    if (file->source == nullptr) return Status::from_errno(ENOMEM);
    file->drop_behind = decision.drops_behind;
    file->shares_chunks = shares_chunk_files(facts);
    (void)file->table.advance(snapshot, NoPlaces{});
    const std::lock_guard lock(mutex_);
    for (FileCache* const f : chunks_.files()) {  // another thread was faster
      if (f->window == window) return join(*f);
    }
    file->begin_counting(memory_limit());
    chunks_.files().push_back(file.get());
    file->users = 1;
    if (log_enabled(LogLevel::info))
      log_line(LogLevel::info, "%s: read path for data not in memory: %s (reason: %s)", name,
               decision == ReadPath::direct       ? "direct I/O"
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
  std::shared_ptr<Window> window;  // its addresses are released after the lock
  {
    const std::lock_guard lock(mutex_);
    if (--file->users != 0) return;
    schedule_.clear_plans(*file);
    file->load.end();
    file->source->leave();
    if (!chunks_.give_all_back(*file)) {
      file->kept = file;
      return;
    }
    std::erase(chunks_.files(), file.get());
    window = std::move(file->window);
    if (chunks_.files().empty()) stopped = std::exchange(worker_, nullptr);
    if (stopped != nullptr)
      stopped->stop();
    else if (worker_ != nullptr)
      worker_->wake();  // it releases the file
  }
  if (stopped == nullptr) return;
  {
    const AsyncSignalsAllowed program;
    stopped->join();
  }
  delete stopped;
}

Status Prefetcher::advance(const Window& window, std::uint64_t snapshot, std::uint64_t file_bytes,
                           std::uint64_t used_bytes) noexcept {
  const std::lock_guard lock(mutex_);
  const std::vector<FileCache*>& files = chunks_.files();
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&window](const FileCache* f) { return f->window.get() == &window; });
  if (found == files.end()) return {};
  FileCache& file = **found;
  if (snapshot <= file.table.newest_snapshot()) return {};
  const Result<std::size_t> gone = chunks_.advance(file, snapshot);
  if (!gone) return gone.error();
  file.file_bytes.store(window.hold(file_bytes), std::memory_order_relaxed);
  file.used_bytes = std::min(used_bytes, file_bytes);
  if (file.direct != nullptr)
    (void)file.window->prepare_restore(file_bytes);  // on failure new data is not published
  if (file.load.path == ReadPath::direct) file.load.end();
  if (gone.value() == 0) return {};
  ++file.stats.snapshots;
  schedule_.want_again(file);
  if (worker_ != nullptr) worker_->wake();
  const std::int64_t now = now_ns();
  if (now - file.changes_since_ns > kMinuteNs) {
    file.changes_since_ns = now;
    file.changes = 0;
  }
  ++file.changes;
  return {};
}

void Prefetcher::add(Walk& walk) noexcept {
  const std::lock_guard lock(mutex_);
  schedule_.add(walk);
}

void Prefetcher::remove(Walk& walk) noexcept {
  const std::lock_guard lock(mutex_);
  schedule_.remove(walk);
  if (!schedule_.has_walks()) chunks_.walks_ended();
}

std::size_t Prefetcher::most_chunks(const FileCache& file) const noexcept {
  constexpr std::size_t kMost = 64, kLeast = 8, kUncounted = 16;
  if (file.path() != ReadPath::direct) return kUncounted;
  const auto chunks = static_cast<std::size_t>(chunks_.budget().limit_now() / file.chunk_bytes);
  // More chunks than arrive during one request only cost memory.
  const std::size_t useful =
      std::clamp(static_cast<std::size_t>(file.least_latency_ns.load(std::memory_order_relaxed) * kFastest /
                                          file.chunk_bytes),
                 kLeast, kMost);
  return std::clamp<std::size_t>(chunks * 3 / 4 / schedule_.going(), 1, useful);
}

// Returns whether a writer is so busy that chunks are evicted before they have paid: the file is left to
// page faults until the minute is over.
bool Prefetcher::has_busy_writer(const FileCache& file) const noexcept {
  return !file.keeps_chunks() && file.changes >= kBusyWriter && now_ns() - file.changes_since_ns <= kMinuteNs;
}

Ticket Prefetcher::submit(Walk& walk, const ReadPlan& plan) noexcept {
  FileCache& file = walk.file();
  Ticket ticket;
  ticket.walk_ = &walk;
  if (const std::uint64_t lacking = chunks_.take_shortage(); lacking != 0) reclaim(lacking);
  const std::lock_guard lock(mutex_);
  if (file.users == 0) return ticket;
  if (!schedule_.plan(walk, plan, ticket.filled_)) return ticket;  // page faults bring what is needed
  ticket.all_cached_ = schedule_.all_cached(walk);
  if (!schedule_.has_work(walk)) return ticket;
  // Chunks would be evicted before they have paid.  Extents are valid for any snapshot.
  const bool busy = has_busy_writer(file);
  if (busy || !ensure_worker()) schedule_.leave_to_mapping(walk);
  const bool extent = schedule_.is_extent_open(walk) && ensure_worker();
  if (worker_ == nullptr || (busy && !extent)) return ticket;
  worker_->wake();
  ticket.pending_ = extent || (!busy && schedule_.open_chunk(walk));
  return ticket;
}

Status Prefetcher::wait(Ticket& ticket) noexcept {
  if (ticket.walk_ == nullptr) return {};
  Walk& walk = *ticket.walk_;
  FileCache& file = walk.file();
  int error = 0;
  if (ticket.pending_) {
    std::unique_lock lock(mutex_);
    StallNotice stall;
    while (file.users != 0) {
      if (const auto claimed = schedule_.claimed_chunk(walk); claimed)
        wait_for_others(walk, *claimed, lock, ticket, stall);
      else if (const auto chunk = schedule_.open_chunk(walk); chunk)
        wait(walk, lock, file.offset(*chunk), stall);
      else if (walk.extent_error_ == 0 && schedule_.is_extent_open(walk) && ensure_worker())
        wait(walk, lock, walk.awaited_.offset, stall);
      else
        break;
    }
    end_wait(walk, stall);
    error = schedule_.take_error(walk);
    ticket.all_cached_ = schedule_.all_cached(walk);
    if (error == 0) error = walk.extent_error_;
    walk.awaited_ = {};
  }
  // Checks before the program touches the chunk, because that would bring the pages back.
  if (ticket.filled_) {
    if (const auto share = filled_share(file, *ticket.filled_); share) {
      const std::lock_guard lock(mutex_);
      if (file.users != 0) note_filled(file, *ticket.filled_, *share, memory_limit());
    }
  }
  return error == 0 ? Status() : Status::from_errno(error);
}

void Prefetcher::wait(Walk& walk, std::unique_lock<SignalSafeMutex>& lock, std::uint64_t offset,
                      StallNotice& stall) noexcept {
  stall.look(walk.file().name.c_str(), offset);
  const std::uint32_t seen = walk.settled_.now();
  walk.waiting_ = true;
  lock.unlock();
  constexpr std::int64_t kPoll = 250'000'000;
  {
    const AsyncSignalsAllowed program;
    walk.settled_.wait(seen, kPoll);
  }
  lock.lock();
}

// Waits for a chunk that another process of the node is reading.
void Prefetcher::wait_for_others(Walk& walk, ChunkIndex chunk, std::unique_lock<SignalSafeMutex>& lock,
                                 Ticket& ticket, StallNotice& stall) noexcept {
  FileCache& file = walk.file();
  stall.look(file.name.c_str(), file.offset(chunk));
  const AsyncSignalsBlocked source_wants_it;
  lock.unlock();
  const ChunkSource::Waited waited = file.source->wait(chunk);
  lock.lock();
  const bool there = waited == ChunkSource::Waited::there;
  if (there) ticket.filled_ = chunk;
  if (!schedule_.claim_ended(walk, chunk, there)) return;
  // The other process gave the chunk, but it was not there any more.  What other processes say is only
  // advice.
  if (waited == ChunkSource::Waited::given) {
    ticket.given_times_ = ticket.given_ == chunk ? ticket.given_times_ + 1 : 1;
    ticket.given_ = chunk;
    if (ticket.given_times_ > kMostGiven) return schedule_.leave_to_mapping(walk);
  }
  if (ensure_worker())
    worker_->wake();
  else
    schedule_.leave_to_mapping(walk);
}

void Prefetcher::end_wait(Walk& walk, const StallNotice& stall) noexcept {
  walk.waiting_ = false;
  if (stall.begun() == 0) return;
  ++walk.file().stats.stalls;
  walk.file().stats.stall_ns += static_cast<std::uint64_t>(now_ns() - stall.begun());
}

bool Prefetcher::is_reading(const FileCache& file, const Extent& extent) noexcept {
  if (!file.reads_extents.load(std::memory_order_relaxed)) return false;
  const std::lock_guard lock(mutex_);
  return std::any_of(file.reading.begin(), file.reading.end(),
                     [&extent](const Extent& e) { return overlap(e, extent); });
}

void Prefetcher::forget_extents(Walk& walk) noexcept {
  const std::lock_guard lock(mutex_);
  walk.next_extent_ = walk.extents_.size();  // the next plan requests the rest of this one
  walk.asked_.clear();
  walk.has_asked_ = false;
}

std::uint64_t Prefetcher::asked_bytes(const Walk& walk, ChunkIndex chunk) const noexcept {
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

bool Prefetcher::next_job(ReadJob& job, bool idle) {
  return schedule_.next(chunks_, job, idle) || next_of_loads(chunks_, job, idle);
}

void Prefetcher::give_up() noexcept {
  for (FileCache* const f : chunks_.files()) f->load.end();
  schedule_.give_up();
}

void Prefetcher::use_readahead(FileCache& file, bool on) noexcept {
  const std::lock_guard lock(mutex_);
  const unsigned before = file.readahead_walks;
  file.readahead_walks += on ? 1u : ~0u;
  if (file.window != nullptr && (before == 0) != (file.readahead_walks == 0)) file.window->use_readahead(on);
}

bool Prefetcher::begin_whole_load(FileCache& file, std::uint64_t used_bytes) noexcept {
  const ReadPath path = whole_load_path(file, used_bytes, chunks_.budget());
  if (file.users == 0 || path == ReadPath::none || !ensure_worker()) return false;
  window::begin_whole_load(file, used_bytes, path);
  worker_->wake();
  return true;
}

void Prefetcher::watch_late_use(FileCache& file, std::span<const std::byte* const> values,
                                std::uint64_t used_bytes) noexcept {
  const std::lock_guard lock(mutex_);
  if (file.users == 0 || file.local || !ensure_worker()) return;
  const bool before = file.late_use.is_watched();
  file.late_use.add(values, used_bytes);
  if (!before && file.late_use.is_watched()) worker_->watch_late_use();
}

bool Prefetcher::empty(FileCache& file) noexcept {
  schedule_.clear_plans(file);  // of transactions that have ended
  return chunks_.empty(file);
}

Status Prefetcher::read_chunk(FileCache& file, ChunkIndex chunk) noexcept {
  const AsyncSignalsBlocked fork_safe;  // a forked child would not have the staging that is read into
  std::unique_lock lock(mutex_);
  for (int tries = 0;;) {
    const ChunkState state = file.table.state(chunk);
    if (state == ChunkState::resident) return {};
    if (state == ChunkState::filling) {  // by the worker, or by another thread in this function
      const std::uint32_t seen = chunk_read_.now();
      lock.unlock();
      constexpr std::int64_t kPoll = 20'000'000;
      {
        const AsyncSignalsAllowed program;
        chunk_read_.wait(seen, kPoll);
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
    (void)chunks_.take_memory(file, true);
    const unsigned forks = this->forks();
    lock.unlock();
    Result<Staging> made = Staging::make(file.chunk_bytes);
    Status st = made ? Status() : made.error();
    Staging staging;
    if (made) {
      staging = std::move(made).value();
      ReadCounts counts;
      st = gather::read_now(*file.file, file.name.c_str(), file.offset(chunk), {staging.data(), bytes},
                            counts);
      file.stats.add_reads(counts);
    }
    lock.lock();
    if (forks != this->forks()) {  // a handler has forked, and this is the child: no thread reads the chunk
      staging.forget();
      continue;
    }
    const bool published = chunks_.finish(file, chunk, generation, st.ok(), staging);
    chunk_read_.notify();
    // Wakes walks that wait for the chunk.  If it was not published, they read it for themselves.
    schedule_.settle(file, chunk, published ? Outcome::ready : Outcome::wanted, 0);
    if (!published && worker_ != nullptr) worker_->wake();
    if (!st.ok()) {
      ++file.stats.read_failed;
      return st;
    }
    file.stats.asked += bytes;
    if (published) return {};
    if (file.users == 0) return Status::from_errno(EBADF);
    if (++tries > kReadTries) return Status::from_errno(ENOMEM);
  }
}

std::uint64_t Prefetcher::memory_used() noexcept {
  const std::lock_guard lock(mutex_);
  return chunks_.budget().used();
}

std::int64_t Prefetcher::look_at_memory() noexcept {
  std::uint64_t excess = 0;
  for (bool more = true; more;) {
    const std::lock_guard lock(mutex_);
    gather::MemoryBudget& budget = chunks_.budget();
    if (budget.look_again_ns() == 0) return 0;
    budget.look_if_needed(0);
    more = chunks_.shrink();
    excess = budget.excess();
  }
  if (excess != 0) reclaim(excess);
  const std::lock_guard lock(mutex_);
  return chunks_.budget().look_again_ns();
}

bool Prefetcher::memory_is_nearly_full() noexcept {
  const std::lock_guard lock(mutex_);
  return chunks_.budget().nearly_full();
}

bool Prefetcher::loads_wait() noexcept {
  const std::lock_guard lock(mutex_);
  return std::any_of(chunks_.files().begin(), chunks_.files().end(),
                     [this](const FileCache* f) { return f->load.is_going() && f->load.reading == 0; });
}

void Prefetcher::after_fork_in_child() noexcept {
  worker_ = nullptr;  // leaked: its threads and descriptors are the parent's
  for (FileCache* const f : chunks_.files()) {
    f->begin_counting(memory_limit());
    f->load.after_fork();
    f->late_use.after_fork();
    f->lookups.after_fork();
    f->reading.clear();
    f->reads_extents = false;
    f->dropping.clear();
    f->has_dropping = false;
  }
  forks_.fetch_add(1, std::memory_order_relaxed);
  chunks_.after_fork();
  schedule_.after_fork();
  mutex_.unlock();
}

}  // namespace lmdbio::window
