#include "lmdbio/cache/filler.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <new>
#include <optional>
#include <utility>

#include "lmdbio/base/unique_fd.h"
#include "lmdbio/io/private_table.h"

namespace lmdbio::cache {

namespace {

/// How long the thread lets small pieces wait, so that it does not wake up for each of them.
constexpr std::int64_t kCollectNs = 1'000'000;

// Gives the calling thread the lowest priority for I/O.  The call may fail.
void become_idle() noexcept {
  constexpr int kProcess = 1, kIdleClass = 3 << 13;  // ioprio_set(2)
  (void)::syscall(SYS_ioprio_set, kProcess, 0, kIdleClass);
}

/// Measures how busy the processors are, by the time that the calling thread waits for one.
class Pace {
 public:
  /// Returns how long to pause.
  std::int64_t pause_ns() noexcept {
    constexpr std::int64_t kEvery = 10'000'000;  // less says little
    timespec t{};
    (void)::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    const std::int64_t ran_ns = std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
    if (ran_ns - last_.ran_ns < kEvery) return 0;
    Use now = waits();
    now.ran_ns = ran_ns;
    const Use before = std::exchange(last_, now);
    return pause_after(now.ran_ns - before.ran_ns, now.waited_ns - before.waited_ns,
                       now.waits - before.waits);
  }

 private:
  struct Use {
    std::int64_t ran_ns = 0, waited_ns = 0, waits = 0;
  };

  // The second and the third number of /proc/PID/schedstat; 0 if there is no such file.
  Use waits() const noexcept {
    char text[80];
    const ssize_t n = stat_ ? ::pread(stat_.get(), text, sizeof text - 1, 0) : 0;
    text[n > 0 ? n : 0] = 0;
    long waited = 0, times = 0;
    return std::sscanf(text, "%*u %ld %ld", &waited, &times) == 2 ? Use{0, waited, times} : Use{};
  }

  const UniqueFd stat_{::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)};
  Use last_ = waits();
};

}  // namespace

std::shared_ptr<Filler> Filler::start(Write write, Copy copy, Idle idle, Work work, void* context,
                                      std::weak_ptr<const void> owner) noexcept {
  try {
    const std::shared_ptr<PrivateTable> table = PrivateTable::get();
    std::shared_ptr<Filler> made(new Filler(write, copy, idle, work, context, std::move(owner)));
    auto kept = std::make_unique<std::shared_ptr<Filler>>(made);  // the thread's
    pthread_t thread;
    if (table == nullptr || table->start(thread, nullptr, run, kept.get()) != 0) return nullptr;
    (void)kept.release();
    (void)::pthread_detach(thread);
    stay_loaded();
    return made;
  } catch (...) {
    return nullptr;
  }
}

void* Filler::run(void* kept) noexcept {
  const std::unique_ptr<std::shared_ptr<Filler>> self(static_cast<std::shared_ptr<Filler>*>(kept));
  (void)::pthread_setname_np(::pthread_self(), "lmdbio-fill");
  become_idle();
  (*self)->serve();
  return nullptr;
}

void Filler::pause(std::int64_t ns) noexcept {
  const std::uint32_t seen = hurry_.now();
  if (ns > 0 && flushing_ == 0 && !ending_) hurry_.wait(seen, ns);
}

void Filler::serve() noexcept {
  Pace pace;
  for (;;) {
    const std::uint32_t seen = wake_.now();
    std::int64_t wait_ns = 0;
    {
      const std::shared_ptr<const void> owner = owner_.lock();
      if (ending_ || owner == nullptr) return;
      const unsigned awaited = awaited_;
      std::shared_ptr<const void> kept;  // released after the step
      if (waiting_ == 0 && cached_ == 0) {
        const std::lock_guard lock(mutex_);
        kept.swap(kept_);
      }
      if (!(is_behind() && store_next()) && !(flushing_ == 0 && work_more()) && !store_next()) {
        wait_ns = idle_(context_);
        if (wait_ns != 0 && idle_seen_.exchange(awaited) != awaited) done_.notify();
      }
    }
    const std::int64_t pause_ns = pace.pause_ns();
    is_paced_ = pause_ns != 0;
    pause(pause_ns);
    if (wait_ns == 0) continue;
    wake_.wait(seen, wait_ns);
    if (waiting_ < kMostBytes / 4) pause(kCollectNs);
  }
}

// Returns false if no piece waits.
bool Filler::store_next() noexcept {
  std::optional<Piece> next;
  {
    const std::lock_guard lock(mutex_);
    if (pieces_.empty()) return false;
    next = std::move(pieces_.front());
    pieces_.pop_front();
  }
  store(std::move(*next));
  return true;
}

// Returns false if there was nothing to do, or if it was interrupted.
bool Filler::work_more() noexcept {
  if (!asked_) return false;
  working_ = true;
  asked_ = false;
  const bool worked = !interrupted() && work_(context_);
  if (worked) asked_ = true;
  working_ = false;
  if (flushing_ != 0) done_.notify();
  return worked;
}

bool Filler::interrupted() noexcept {
  constexpr int kMost = 8;
  for (int i = 0; i < kMost && is_behind() && !is_paced_ && !ending_; ++i)
    if (!store_next()) break;
  if (!ending_ && flushing_ == 0) return false;
  asked_ = true;  // to go on later
  return true;
}

void Filler::store(Piece piece) noexcept {
  if (piece.is_cached()) {
    copy_(context_, piece.offset, piece.bytes);
    wrote(cached_, piece.bytes);
  } else {
    write_(context_, piece.offset, {piece.memory.get(), piece.bytes});
    piece.memory.reset();
    give_back(piece.bytes);
  }
}

std::unique_ptr<std::byte[]> Filler::take(std::size_t bytes) noexcept {
  if (waiting_.fetch_add(bytes) + bytes <= kMostBytes) {
    std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[bytes]);
    if (memory != nullptr) return memory;
  }
  give_back(bytes);
  return nullptr;
}

void Filler::add(std::uint64_t offset, std::unique_ptr<std::byte[]> memory, std::size_t bytes) noexcept {
  if (!push({offset, std::move(memory), bytes})) give_back(bytes);
}

bool Filler::add_cached(std::uint64_t offset, std::size_t bytes) noexcept {
  if (cached_.fetch_add(bytes) + bytes <= kMostCached && push({offset, nullptr, bytes})) return true;
  wrote(cached_, bytes);
  return false;
}

bool Filler::push(Piece piece) noexcept {
  bool first = false;
  try {
    const std::lock_guard lock(mutex_);
    if (!pieces_.empty() && pieces_.back().is_cached() && piece.is_cached()) {
      Piece& last = pieces_.back();
      if (last.offset + last.bytes == piece.offset && last.bytes + piece.bytes <= kMostJoined) {
        last.bytes += piece.bytes;
        return true;
      }
    }
    if (pieces_.size() >= kMostPieces) return false;
    first = pieces_.empty();
    pieces_.push_back(std::move(piece));
  } catch (...) {
    return false;
  }
  if (first) wake_.notify_one();
  return true;
}

void Filler::flush_until(std::int64_t end_ns, Idleness idleness) noexcept {
  ++flushing_;
  const bool waits_for_idle = idleness == Idleness::awaited;
  const unsigned mine = waits_for_idle ? ++awaited_ : 0;
  if (waits_for_idle) wake_.notify();
  hurry_.notify();
  for (;;) {
    const std::uint32_t seen = done_.now();
    const std::int64_t left = end_ns - now_ns();
    if ((waiting_ == 0 && cached_ == 0 && !working_ && idle_seen_ >= mine) || left <= 0) break;
    done_.wait(seen, left);
  }
  --flushing_;
  wake_.notify();  // the work goes on
}

void Filler::keep(std::shared_ptr<const void> owner) noexcept {
  {
    const std::lock_guard lock(mutex_);
    kept_.swap(owner);
  }
  wake_.notify();
}

void Filler::stop_work(std::int64_t end_ns) noexcept {
  ++flushing_;
  for (;;) {
    const std::uint32_t seen = done_.now();
    const std::int64_t left = end_ns - now_ns();
    if (!working_ || left <= 0) return;
    done_.wait(seen, left);
  }
}

}  // namespace lmdbio::cache
