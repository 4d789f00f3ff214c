#include "lmdbio/records/pending_locations.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/interrupt.h"
#include "lmdbio/records/open_locations.h"

namespace lmdbio::records {

namespace {

/// Interval at which a waiting caller checks for cancellation.
constexpr std::chrono::milliseconds kPoll{20};

}  // namespace

PendingLocations::PendingLocations(const Source& source, std::shared_ptr<Memory> memory)
    : file_(source.file), name_(source.name), pid_(::getpid()) {
  request_.file = file_.get();
  request_.file_pages = source.pages;
  request_.page_size = source.page_size;
  request_.version = source.version;
  request_.record = source.db;
  request_.available = source.available;
  request_.make_engine = source.make_engine;
  request_.memory = std::move(memory);
  request_.progress = go_on;
  request_.context = this;
  request_.cancelled = &ending_;
}

std::unique_ptr<PendingLocations> PendingLocations::start(const Source& source,
                                                          std::shared_ptr<Memory> memory, bool tolerant,
                                                          std::uint64_t part, std::uint64_t parts) {
  std::unique_ptr<PendingLocations> made(new PendingLocations(source, std::move(memory)));
  made->request_.tolerant = tolerant;
  made->request_.part = part;
  made->request_.parts = parts;
  if (made->file_->base().start_thread(made->thread_, run, made.get()) == 0) return made;
  made->ended_ = true;  // there is no thread to wait for
  made->thread_ = {};
  return nullptr;
}

PendingLocations::~PendingLocations() {
  if (thread_ == pthread_t{} || ::getpid() != pid_) return;  // in a forked child, the thread does not exist
  ending_.store(true, std::memory_order_relaxed);
  (void)::pthread_join(thread_, nullptr);
}

void* PendingLocations::run(void* self) noexcept {
  (void)::pthread_setname_np(::pthread_self(), "lmdbio-index");
  static_cast<PendingLocations*>(self)->make();
  return nullptr;
}

bool PendingLocations::go_on(void* self, std::uint64_t, std::uint64_t) noexcept {
  return !static_cast<PendingLocations*>(self)->ending_.load(std::memory_order_relaxed);
}

void PendingLocations::make() noexcept {
  RecordIndex index;
  IndexProblem problem;
  TakenMemory taken;
  Status st = build_index(request_, index, problem, nullptr, &taken);
  std::string why;
  try {
    if (st.ok()) {
      warn_of_damage(name_, problem);
      made_ = std::make_unique<IndexLocations>(std::move(index), request_.memory, std::move(taken));
    } else {
      why = index_failure(name_, st, problem, request_.memory.get());
    }
  } catch (...) {
    st = Status::from_errno(ENOMEM);
  }
  {
    const std::lock_guard lock(mutex_);
    status_ = st;
    why_ = std::move(why);
    ended_ = true;
    index_.store(made_.get(), std::memory_order_release);
  }
  changed_.notify_all();
}

// Starts the build again.  The caller holds the mutex.  The old thread has ended, or is about to end without
// taking the mutex again.
void PendingLocations::make_again() const noexcept {
  if (thread_ != pthread_t{}) (void)::pthread_join(thread_, nullptr);
  thread_ = {};
  // The cast is valid: no PendingLocations object is const.
  if (file_->base().start_thread(thread_, run, const_cast<PendingLocations*>(this)) != 0) {
    thread_ = {};
    return;
  }
  ended_ = false;
  status_ = {};
}

bool PendingLocations::done() const noexcept {
  const std::lock_guard lock(mutex_);
  return ended_;
}

const RecordIndex* PendingLocations::made(Status& st, std::string& why) const {
  const std::lock_guard lock(mutex_);
  st = status_;
  why = why_;
  return made_ != nullptr ? &made_->index() : nullptr;
}

Status PendingLocations::await(const std::atomic<bool>& cancelled, std::string& why) const {
  if (index_.load(std::memory_order_acquire) != nullptr) return {};
  std::unique_lock lock(mutex_);
  if (ended_ && status_.raw() == ENOMEM && ::getpid() == pid_) make_again();
  while (!ended_) {
    lock.unlock();
    // If a signal handler has forked and this is the child, another thread may have held the mutex at the
    // fork.
    if (wait_ended(cancelled) || ::getpid() != pid_) return Status::from_errno(ECANCELED);
    lock.lock();
    if (ended_) break;
    const AsyncSignalsAllowed program;  // fork handlers do not take the mutex
    changed_.wait_for(lock, kPoll);
  }
  if (!status_.ok()) why = why_;
  return status_;
}

}  // namespace lmdbio::records
