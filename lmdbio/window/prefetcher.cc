#include "lmdbio/window/prefetcher.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <new>
#include <utility>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/gather/needed_pages.h"
#include "lmdbio/window/io_worker.h"
#include "lmdbio/window/path_change.h"
#include "lmdbio/window/whole_load.h"

namespace lmdbio::window {

namespace {

/// Upper limit on the throughput of storage, in bytes per ns.
constexpr std::uint64_t kFastest = 8;

constinit SignalSafeMutex creation;  // guards the_one while it is set
constinit std::atomic<Prefetcher*> the_one{nullptr};

/// How often a chunk that could not be published is read again.
constexpr int kReadTries = 8;
/// How often another process may report that it has read a chunk, although the chunk is not there.
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

void Prefetcher::add(Walk& walk) noexcept {
  const std::lock_guard lock(mutex_);
  schedule_.add(walk);
}

void Prefetcher::remove(Walk& walk) noexcept {
  const std::lock_guard lock(mutex_);
  schedule_.remove(walk);
  if (!schedule_.has_walks()) chunks_.walks_ended();
}

std::size_t Prefetcher::most_chunks(const WindowFile& file) const noexcept {
  constexpr std::size_t kMost = 64, kLeast = 8, kUncounted = 16;
  if (file.path() != ReadPath::direct) return kUncounted;
  const auto chunks = static_cast<std::size_t>(chunks_.budget().limit_now() / file.chunk_bytes);
  // More chunks than can be read during one request would only cost memory.
  const std::size_t useful =
      std::clamp(static_cast<std::size_t>(file.least_latency_ns.load(std::memory_order_relaxed) * kFastest /
                                          file.chunk_bytes),
                 kLeast, kMost);
  return std::clamp<std::size_t>(chunks * 3 / 4 / schedule_.going(), 1, useful);
}

Ticket Prefetcher::submit(Walk& walk, const ReadPlan& plan) noexcept {
  WindowFile& file = walk.file();
  Ticket ticket;
  ticket.walk_ = &walk;
  if (const std::uint64_t lacking = chunks_.take_shortage(); lacking != 0) memory_.reclaim(lacking);
  const std::lock_guard lock(mutex_);
  if (file.users == 0) return ticket;
  if (!schedule_.plan(walk, plan, ticket.filled_)) return ticket;  // page faults read what is needed
  ticket.all_cached_ = schedule_.all_cached(walk);
  if (!schedule_.has_work(walk)) return ticket;
  // While a writer commits often, chunks would be evicted before they have been useful.  Extents are valid
  // for any snapshot.
  const bool busy = !file.keeps_chunks() && file.changes.are_frequent();
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
  WindowFile& file = walk.file();
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
  // Checks the chunk before the program touches it, because a touch would read missing pages again.
  if (ticket.filled_) {
    if (const auto share = filled_share(file, *ticket.filled_); share) {
      const std::lock_guard lock(mutex_);
      if (file.users != 0) note_filled(file, *ticket.filled_, *share, memory_.limit());
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
  WindowFile& file = walk.file();
  stall.look(file.name.c_str(), file.offset(chunk));
  const AsyncSignalsBlocked source_wants_it;
  lock.unlock();
  const ChunkSource::Waited waited = file.source->wait(chunk);
  lock.lock();
  const bool there = waited == ChunkSource::Waited::there;
  if (there) ticket.filled_ = chunk;
  if (!schedule_.claim_ended(walk, chunk, there)) return;
  // The other process reported the chunk, but the chunk was not there any more.  Reports of other processes
  // are only hints.
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

bool Prefetcher::is_reading(const WindowFile& file, const Extent& extent) noexcept {
  if (file.reading.is_empty()) return false;
  const std::lock_guard lock(mutex_);
  return file.reading.overlaps(extent);
}

void Prefetcher::forget_extents(Walk& walk) noexcept {
  const std::lock_guard lock(mutex_);
  walk.next_extent_ = walk.extents_.size();  // the next plan requests the rest of this one
  walk.asked_.clear();
  walk.has_asked_ = false;
}

std::uint64_t Prefetcher::asked_bytes(const Walk& walk, ChunkIndex chunk) const noexcept {
  const WindowFile& file = walk.file();
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
  for (WindowFile* const f : chunks_.files()) f->load.end();
  schedule_.give_up();
}

Status Prefetcher::read_chunk(WindowFile& file, ChunkIndex chunk) noexcept {
  const AsyncSignalsBlocked fork_safe;  // a forked child would not inherit the staging that is read into
  std::unique_lock lock(mutex_);
  for (int tries = 0;;) {
    const ChunkState state = file.table.state(chunk);
    if (state == ChunkState::resident) return {};
    if (state == ChunkState::filling) {  // the worker or another thread is reading it
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
      st = gather::read_now(*file.file(), file.name.c_str(), file.offset(chunk), {staging.data(), bytes},
                            counts);
      file.stats.add_reads(counts);
    }
    lock.lock();
    if (forks != this->forks()) {  // this is a child that a signal handler forked: no thread reads the chunk
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

bool Prefetcher::loads_wait() noexcept {
  const std::lock_guard lock(mutex_);
  return std::any_of(chunks_.files().begin(), chunks_.files().end(),
                     [this](const WindowFile* f) { return f->load.is_going() && f->load.reading == 0; });
}

void Prefetcher::after_fork_in_child() noexcept {
  worker_ = nullptr;  // leaked: its threads and descriptors are the parent's
  for (WindowFile* const f : chunks_.files()) {
    f->begin_counting(memory_.limit());
    f->load.after_fork();
    f->late_use.after_fork();
    f->lookups.after_fork();
    f->takes_chunks_from_cache.reset();
    (void)f->reading.take();
    (void)f->dropping.take();
  }
  forks_.fetch_add(1, std::memory_order_relaxed);
  chunks_.after_fork();
  schedule_.after_fork();
  mutex_.unlock();
}

}  // namespace lmdbio::window
