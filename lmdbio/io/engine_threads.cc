#include "lmdbio/io/engine_threads.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <new>
#include <span>
#include <utility>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/unique_fd.h"
#include "lmdbio/io/file_system.h"
#include "lmdbio/io/private_table.h"

namespace lmdbio {
namespace {

constexpr std::size_t kStackBytes = 256 * 1024;
/// A buffered read of at least this many bytes requests all of them before it waits for the first.
constexpr std::size_t kWorthAsking = 32 * 1024;
/// A thread takes several reads at once, if its reader can, up to this many bytes.
constexpr std::size_t kTogether = 64 * 1024;
constexpr std::uint64_t kNotKnown = ~std::uint64_t{0};

// Reads that only fill the page cache share one buffer, which is never read.  ThreadSanitizer must not report
// this as a race.
ssize_t read_at(int fd, MutableBytes dst, std::uint64_t offset) noexcept {
#ifdef __SANITIZE_THREAD__
  return ::syscall(SYS_pread64, fd, dst.data(), dst.size(), static_cast<off_t>(offset));
#else
  return ::pread(fd, dst.data(), dst.size(), static_cast<off_t>(offset));
#endif
}

/// Calls pread(2).
class FileReader final : public RangeReader {
 public:
  explicit FileReader(const File& file) noexcept : fd_(file.fd()), direct_(file.direct()) {}
  long fill(std::uint64_t offset, MutableBytes to) noexcept override {
    if (!direct_ && to.size() >= kWorthAsking) ask_for(offset, to);
    const ssize_t n = read_at(fd_, to, offset);
    return n < 0 ? -static_cast<long>(errno) : static_cast<long>(n);
  }
  unsigned threads() const noexcept override { return ThreadsEngine::kMostThreads; }

 private:
  void ask_for(std::uint64_t offset, MutableBytes to) noexcept;

  const int fd_;
  const bool direct_;
  std::atomic<std::uint64_t> readahead_{kNotKnown};  ///< of the kernel, in bytes
};

// Requests the whole range at once, and waits only for the last page of each request.  A plain buffered read
// requests read_ahead_kb at a time from storage, one request after the other, and wakes its thread for each
// page that comes.  The read that follows copies all pages, and reports errors.
void FileReader::ask_for(std::uint64_t offset, MutableBytes to) noexcept {
  std::uint64_t step = readahead_.load(std::memory_order_relaxed);
  if (step == kNotKnown) readahead_.store(step = kernel_readahead(fd_), std::memory_order_relaxed);
  if (step == 0) return;  // no read-ahead: the kernel would request nothing in advance
  const std::uint64_t end = offset + to.size();
  for (std::uint64_t at = offset; at < end; at += step)
    (void)::posix_fadvise(fd_, static_cast<off_t>(at), static_cast<off_t>(std::min(step, end - at)),
                          POSIX_FADV_WILLNEED);
  for (std::uint64_t at = offset; at < end; at += step) {
    const std::uint64_t last = std::min(step, end - at) - 1;
    (void)read_at(fd_, to.subspan(at - offset + last, 1), at + last);
  }
}

// A queue of fixed capacity.
template <class T>
class Ring {
 public:
  bool make(unsigned room) noexcept {
    items_.reset(new (std::nothrow) T[room]);
    room_ = room;
    return items_ != nullptr;
  }
  unsigned count() const noexcept { return count_; }
  const T& front() const noexcept { return items_[first_]; }
  void push(const T& item) noexcept { items_[(first_ + count_++) % room_] = item; }
  T pop() noexcept {
    const T item = items_[first_];
    first_ = (first_ + 1) % room_;
    --count_;
    return item;
  }

 private:
  std::unique_ptr<T[]> items_;
  unsigned room_ = 0, first_ = 0, count_ = 0;
};

}  // namespace

// State that the engine and its threads share.  Only stop() destroys the pthread objects.  In a forked
// child, where their state is undefined, their bytes are freed without destruction.
struct ThreadsEngine::Pool {
  std::unique_ptr<RangeReader> reader;
  EventCount* told = nullptr;  // notified when results come; if null, `ready` is used
  UniqueFd ready;              // an eventfd, above 0 exactly while there are results

  // Used only by the thread that uses the engine.
  std::unique_ptr<pthread_t[]> threads;
  unsigned started = 0, most = 0;

  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // guards all members below; a leaf lock
  pthread_cond_t work = PTHREAD_COND_INITIALIZER;     // reads have come, or the engine ends
  pthread_cond_t done = PTHREAD_COND_INITIALIZER;     // as many results as `waited_for` have come
  Ring<RawRead> reads;
  Ring<RawResult> results;
  unsigned idle = 0;           // threads that wait for work, including those just woken
  std::size_t waited_for = 0;  // number of results; 0: no thread waits
  bool ending = false;

  static void* run(void* pool) noexcept;
  void serve() noexcept;
  int add_thread() noexcept;
  void stop() noexcept;
};

void* ThreadsEngine::Pool::run(void* pool) noexcept {
  (void)::pthread_setname_np(::pthread_self(), "lmdbio-read");
  static_cast<Pool*>(pool)->serve();
  return nullptr;
}

void ThreadsEngine::Pool::serve() noexcept {
  ::pthread_mutex_lock(&mutex);
  for (;;) {
    while (reads.count() == 0 && !ending) {
      ++idle;
      ::pthread_cond_wait(&work, &mutex);
      --idle;
    }
    if (ending) break;
    std::array<RangeReader::Range, RangeReader::kMostAtOnce> ranges;
    std::array<unsigned, RangeReader::kMostAtOnce> slots;
    std::size_t n = 0, bytes = 0;
    const unsigned at_once = reader->at_once();
    do {
      const RawRead r = reads.pop();
      slots[n] = r.slot;
      ranges[n++] = {r.offset, r.dst};
      bytes += r.dst.size();
    } while (n < at_once && reads.count() != 0 && bytes + reads.front().dst.size() <= kTogether);
    if (n > 1 && reads.count() != 0) ::pthread_cond_signal(&work);
    ::pthread_mutex_unlock(&mutex);
    if (n == 1)
      ranges[0].result = reader->fill(ranges[0].offset, ranges[0].to);
    else
      reader->fill_all(std::span(ranges).first(n));
    ::pthread_mutex_lock(&mutex);
    const bool first = results.count() == 0;
    for (std::size_t i = 0; i < n; ++i) results.push({slots[i], ranges[i].result});
    if (first && told != nullptr) {
      told->notify();
    } else if (first) {
      const std::uint64_t one = 1;
      [[maybe_unused]] const ssize_t written = ::write(ready.get(), &one, sizeof one);  // cannot fail
    }
    if (waited_for != 0 && results.count() >= waited_for) ::pthread_cond_signal(&done);
  }
  ::pthread_mutex_unlock(&mutex);
}

int ThreadsEngine::Pool::add_thread() noexcept {
  pthread_attr_t attributes;
  if (const int rc = ::pthread_attr_init(&attributes); rc != 0) return rc;
  (void)::pthread_attr_setstacksize(&attributes, kStackBytes);
  note_own_thread();
  sigset_t all, before;
  ::sigfillset(&all);
  (void)::pthread_sigmask(SIG_SETMASK, &all, &before);  // signal handlers run on the program's threads
  const auto create = [this](const pthread_attr_t* how) noexcept {
    // PrivateTable::inside() is then true in the new thread, too.
    const std::shared_ptr<PrivateTable> table = PrivateTable::inside() ? PrivateTable::get() : nullptr;
    return table != nullptr ? table->start(threads[started], how, run, this)
                            : ::pthread_create(&threads[started], how, run, this);
  };
  int rc = create(&attributes);
  if (rc == EINVAL) rc = create(nullptr);  // kStackBytes is too small
  (void)::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  (void)::pthread_attr_destroy(&attributes);
  if (rc == 0) ++started;
  return rc;
}

void ThreadsEngine::Pool::stop() noexcept {
  ::pthread_mutex_lock(&mutex);
  ending = true;
  ::pthread_cond_broadcast(&work);
  ::pthread_mutex_unlock(&mutex);
  for (unsigned i = 0; i < started; ++i) ::pthread_join(threads[i], nullptr);
  ::pthread_cond_destroy(&work);
  ::pthread_cond_destroy(&done);
  ::pthread_mutex_destroy(&mutex);
}

ThreadsEngine::ThreadsEngine(const File& file, unsigned depth) noexcept
    : IoEngine({file.alignment(), depth, file.direct()}) {}

ThreadsEngine::~ThreadsEngine() {
  if (pool_ != nullptr) pool_->stop();
}

int ThreadsEngine::ready_fd() const noexcept { return pool_ != nullptr ? pool_->ready.get() : -1; }

// The stacks of the parent's threads stay allocated, since libc owns them.
void ThreadsEngine::forget() noexcept { pool_.reset(); }

Status ThreadsEngine::start(const File& file, unsigned most, std::unique_ptr<RangeReader> reader,
                            EventCount* told) noexcept {
  std::unique_ptr<Pool> pool(new (std::nothrow) Pool);
  if (pool == nullptr || !pool->reads.make(caps().depth) || !pool->results.make(caps().depth))
    return Status::from_errno(ENOMEM);
  pool->threads.reset(new (std::nothrow) pthread_t[most]);
  if (pool->threads == nullptr) return Status::from_errno(ENOMEM);
  pool->told = told;
  if (told == nullptr) {
    pool->ready.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!pool->ready) return Status::from_errno(errno);
  }
  pool->most = most;
  pool->reader = reader != nullptr ? std::move(reader) : file_reader(file);
  if (pool->reader == nullptr) return Status::from_errno(ENOMEM);
  if (const int rc = pool->add_thread(); rc != 0) return Status::from_errno(rc);
  pool_ = std::move(pool);
  return Status();
}

Result<std::size_t> ThreadsEngine::do_submit(std::span<const RawRead> reads) noexcept {
  Pool& p = *pool_;
  ::pthread_mutex_lock(&p.mutex);
  std::size_t bytes = 0;
  for (const RawRead& r : reads) {
    p.reads.push(r);  // there is room: at most as many as `depth` are in flight
    bytes += r.dst.size();
  }
  // The number of threads for these reads, and for all that wait, if all are as large as these on average.
  const std::size_t together = std::clamp<std::size_t>(
      kTogether * reads.size() / std::max<std::size_t>(bytes, 1), 1, p.reader->at_once());
  const auto threads_for = [&](std::size_t n) {
    return static_cast<unsigned>((n + together - 1) / together);
  };
  const unsigned fresh = threads_for(reads.size()), waiting = threads_for(p.reads.count()), idle = p.idle;
  ::pthread_mutex_unlock(&p.mutex);
  for (unsigned i = std::min(fresh, idle); i != 0; --i) ::pthread_cond_signal(&p.work);
  // This may miss a thread that is about to become idle, and then start one thread too many, but never more
  // than `most`.
  const unsigned most = std::min(p.most, p.reader->threads());
  for (unsigned missing = waiting - std::min(waiting, idle); missing != 0 && p.started < most; --missing)
    if (p.add_thread() != 0) p.most = p.started;
  return reads.size();
}

Result<std::size_t> ThreadsEngine::do_reap(std::span<RawResult> out, std::size_t min) noexcept {
  Pool& p = *pool_;
  ::pthread_mutex_lock(&p.mutex);
  p.waited_for = min;
  while (p.results.count() < min) ::pthread_cond_wait(&p.done, &p.mutex);
  p.waited_for = 0;
  const std::size_t n = std::min<std::size_t>(out.size(), p.results.count());
  for (std::size_t i = 0; i < n; ++i) out[i] = p.results.pop();
  if (n != 0 && p.results.count() == 0 && p.told == nullptr) {
    std::uint64_t count;
    [[maybe_unused]] const ssize_t got = ::read(p.ready.get(), &count, sizeof count);
  }
  ::pthread_mutex_unlock(&p.mutex);
  return n;
}

std::unique_ptr<RangeReader> file_reader(const File& file) noexcept {
  return std::unique_ptr<RangeReader>(new (std::nothrow) FileReader(file));
}

Result<std::unique_ptr<IoEngine>> threads_engine(const File& file, unsigned depth, unsigned threads,
                                                 std::unique_ptr<RangeReader> reader,
                                                 EventCount* results) noexcept {
  if (depth == 0) return Status::from_errno(EINVAL);
  std::unique_ptr<ThreadsEngine> engine(new (std::nothrow) ThreadsEngine(file, depth));
  if (engine == nullptr) return Status::from_errno(ENOMEM);
  const unsigned most = threads != 0 ? threads : std::min(depth, ThreadsEngine::kMostThreads);
  if (const Status s = engine->start(file, std::min(most, depth), std::move(reader), results); !s.ok())
    return s;
  return std::unique_ptr<IoEngine>(std::move(engine));
}

}  // namespace lmdbio
