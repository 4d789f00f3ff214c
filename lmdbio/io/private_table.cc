#include "lmdbio/io/private_table.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/base/log.h"
#include "lmdbio/base/unique_fd.h"

namespace lmdbio {

namespace {

// From linux/close_range.h (Linux 5.9).
constexpr unsigned kCloseRangeUnshare = 2;
#ifdef SYS_close_range
constexpr long kSysCloseRange = SYS_close_range;
#else
constexpr long kSysCloseRange = 436;
#endif
// Linux 5.3 and 5.6; the numbers are the same on all supported machines.
constexpr long kSysPidfdOpen = 434, kSysPidfdGetfd = 438;
/// The runtimes of the sanitizers write to standard error in any thread.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr unsigned kFirstClosed = 3;
#else
constexpr unsigned kFirstClosed = 0;
#endif

/// Upper limit on the threads of the table.  Further jobs wait until one of them is free.
constexpr unsigned kMostThreads = 128;
constexpr std::size_t kStackBytes = std::size_t{256} << 10;

thread_local constinit bool in_table = false;
constinit std::atomic<unsigned> forks{0};

constinit std::mutex the_mutex;  // guards the following variables
constinit std::weak_ptr<PrivateTable>* the_table = nullptr;
/// The table of a forked child, which stays until the process ends.
constinit std::shared_ptr<PrivateTable>* childs_table = nullptr;
constinit bool refused = false;  // the system does not allow a second table
constinit std::atomic<bool> watches_forks{false};

constinit cpu_set_t loaded_with{};
constinit std::atomic<bool> has_affinity{false};

/// Closes all descriptors of the calling thread, whose table no other thread shares.
void close_all() noexcept {
  if (DIR* const list = ::opendir("/proc/thread-self/fd"); list != nullptr) {
    while (const dirent* const entry = ::readdir(list)) {
      int fd = -1;
      const std::string_view name = entry->d_name;
      (void)std::from_chars(name.data(), name.data() + name.size(), fd);
      if (fd >= static_cast<int>(kFirstClosed) && fd != ::dirfd(list)) UniqueFd(fd).reset();
    }
    (void)::closedir(list);
    return;
  }
  const long most = ::sysconf(_SC_OPEN_MAX);
  for (int fd = static_cast<int>(kFirstClosed); fd < static_cast<int>(std::clamp(most, 1024L, 1L << 20));
       ++fd)
    UniqueFd(fd).reset();
}

/// Gives the calling thread an empty descriptor table of its own.  Returns false if the system does not allow
/// this.
bool leave_programs_table() noexcept {
  if (::syscall(kSysCloseRange, kFirstClosed, ~0u, kCloseRangeUnshare) != 0) {
    if (::unshare(CLONE_FILES) != 0) return false;  // before Linux 5.9
    close_all();
  }
  // Open /dev/null under the numbers to which other code writes, so that no file of LMDBIO gets one of them.
  for (int fd = 0; fd >= 0 && fd < 2;) fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  return true;
}

/// Opens the program's standard error, as set_standard_error_opener() requires.
int open_standard_error() noexcept {
  if (!in_table) return kSharesDescriptors;
  if (kFirstClosed > 2) return ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
  if (const int fd = PrivateTable::duplicate_of_programs(STDERR_FILENO); fd >= 0) return fd;
  return ::open("/proc/self/fd/2", O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
}

/// Runs in a forked child, which has one thread.  The table, its threads and its descriptors belong to the
/// parent and are left as they are.  Makes a new mutex, since another thread may have held the old one.
void after_fork_in_child() noexcept {
  forks.fetch_add(1, std::memory_order_relaxed);
  new (&the_mutex) std::mutex;
  the_table = nullptr;
  childs_table = nullptr;
}

}  // namespace

void remember_affinity() noexcept {
  if (::sched_getaffinity(0, sizeof loaded_with, &loaded_with) == 0)
    has_affinity.store(true, std::memory_order_release);
}

void use_remembered_affinity() noexcept {
  if (has_affinity.load(std::memory_order_acquire))
    (void)::sched_setaffinity(0, sizeof loaded_with, &loaded_with);  // failure: keep the current mask
}

void stay_loaded() noexcept {
  static std::atomic<bool> done{false};
  if (done.load(std::memory_order_relaxed) || done.exchange(true)) return;
  Dl_info self;
  if (::dladdr(reinterpret_cast<void*>(&stay_loaded), &self) == 0 || self.dli_fname == nullptr) return;
  (void)::dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);  // fails if linked into the program
}

struct PrivateTable::Core {
  SignalSafeMutex mutex;  // guards all members except `busy` and `started`
  Job* first = nullptr;
  Job* last = nullptr;
  EventCount work;   // a job was queued, or the table ends
  EventCount ended;  // a posted job has run
  unsigned threads = 0;
  bool ending = false;
  pthread_t ids[kMostThreads]{};
  std::atomic<unsigned> busy{0};  // threads that run a job
  OneShot started;
  bool own_table = false;  // published by `started`

  static void* run_first(void* self) noexcept;
  static void* run(void* self) noexcept;
  void serve() noexcept;
  bool add_thread(void* (*body)(void*) noexcept) noexcept;
};

// Call with the mutex held.  All threads except the first are started by a thread of the table.
bool PrivateTable::Core::add_thread(void* (*body)(void*) noexcept) noexcept {
  if (threads == kMostThreads) return false;
  note_own_thread();
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) != 0) return false;
  (void)::pthread_attr_setstacksize(&attributes, kStackBytes);
  sigset_t all, before;
  (void)::sigfillset(&all);
  (void)::pthread_sigmask(SIG_SETMASK, &all, &before);  // signal handlers run on the program's threads
  int rc = ::pthread_create(&ids[threads], &attributes, body, this);
  if (rc == EINVAL) rc = ::pthread_create(&ids[threads], nullptr, body, this);  // kStackBytes is too small
  (void)::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  (void)::pthread_attr_destroy(&attributes);
  if (rc == 0) ++threads;
  return rc == 0;
}

void* PrivateTable::Core::run_first(void* self) noexcept {
  Core& core = *static_cast<Core*>(self);
  core.own_table = leave_programs_table();
  use_remembered_affinity();  // the threads that it starts inherit it
  const bool own = core.own_table;
  core.started.set();
  return own ? run(self) : nullptr;
}

void* PrivateTable::Core::run(void* self) noexcept {
  (void)::pthread_setname_np(::pthread_self(), "lmdbio-fd");
  in_table = true;
  const AsyncSignalsBlocked always;  // counts as blocked from now on, so the mutex makes no system calls
  static_cast<Core*>(self)->serve();
  return nullptr;
}

void PrivateTable::Core::serve() noexcept {
  std::unique_lock lock(mutex);
  for (;;) {
    if (first != nullptr) {
      Job& job = *first;
      first = job.next_;
      if (first == nullptr) last = nullptr;
      job.next_ = nullptr;
      job.queued_ = false;
      ++job.running_;
      // Jobs may block for long, so another thread must be available for the next one.
      if (busy.fetch_add(1, std::memory_order_relaxed) + 1 >= threads) (void)add_thread(run);
      OneShot* const done = job.done_;
      lock.unlock();
      job.run_(job.argument_);
      busy.fetch_sub(1, std::memory_order_relaxed);
      if (done != nullptr) {
        done->set();  // the caller may free the job from now on
        lock.lock();
        continue;
      }
      lock.lock();
      --job.running_;
      ended.notify();
      continue;
    }
    if (ending) return;
    const std::uint32_t seen = work.now();
    lock.unlock();
    constexpr std::int64_t kLong = 3'600'000'000'000;
    work.wait(seen, kLong);
    lock.lock();
  }
}

std::shared_ptr<PrivateTable> PrivateTable::get() noexcept {
  const AsyncSignalsBlocked allocates;
  stay_loaded();  // before the lock: the loader holds a lock of its own, and a constructor may wait for ours
  try {
    const std::lock_guard lock(the_mutex);
    if (the_table == nullptr) the_table = new std::weak_ptr<PrivateTable>;
    if (std::shared_ptr<PrivateTable> there = the_table->lock(); there != nullptr) return there;
    if (refused) return nullptr;
    auto core = std::make_unique<Core>();
    if (!watch_forks()) return nullptr;
    set_standard_error_opener(open_standard_error);
    if (!has_affinity.load(std::memory_order_acquire)) remember_affinity();
    {
      const std::lock_guard its(core->mutex);
      if (!core->add_thread(Core::run_first)) return nullptr;
    }
    constexpr std::int64_t kLong = 3'600'000'000'000;
    while (!core->started.is_set()) core->started.wait(kLong);
    if (!core->own_table) {
      (void)::pthread_join(core->ids[0], nullptr);
      refused = true;
      return nullptr;
    }
    const std::shared_ptr<PrivateTable> made(new PrivateTable(core.get()));
    (void)core.release();
    *the_table = made;
    if (generation() != 0 && childs_table == nullptr) childs_table = new std::shared_ptr<PrivateTable>(made);
    return made;
  } catch (...) {  // out of memory
    return nullptr;
  }
}

bool PrivateTable::inside() noexcept { return in_table; }

int PrivateTable::duplicate_of_programs(int fd) noexcept {
  const UniqueFd process(static_cast<int>(::syscall(kSysPidfdOpen, ::getpid(), 0)));
  return process ? static_cast<int>(::syscall(kSysPidfdGetfd, process.get(), fd, 0)) : -1;
}

bool PrivateTable::crowded(int fd) noexcept {
  rlimit most{};
  return ::getrlimit(RLIMIT_NOFILE, &most) == 0 && static_cast<rlim_t>(fd) >= most.rlim_cur / 2;
}

bool PrivateTable::watch_forks() noexcept {
  if (watches_forks.exchange(true)) return true;
  const bool done = ::pthread_atfork(nullptr, nullptr, after_fork_in_child) == 0;
  if (!done) watches_forks.store(false);
  return done;
}

unsigned PrivateTable::generation() noexcept { return forks.load(std::memory_order_relaxed); }

PrivateTable::~PrivateTable() {
  if (generation() != born_) return;  // the table belongs to the parent
  Core& c = *core_;
  {
    const std::lock_guard lock(c.mutex);
    c.ending = true;
    c.work.notify();
  }
  // No job is running, since the caller of a job holds a reference to the table.
  if (in_table) {
    pthread_t reaper;  // a thread cannot join itself
    const auto join = [](void* core) -> void* {
      std::unique_ptr<Core> its(static_cast<Core*>(core));
      for (unsigned i = 0; i < its->threads; ++i) (void)::pthread_join(its->ids[i], nullptr);
      return nullptr;
    };
    if (::pthread_create(&reaper, nullptr, join, &c) == 0) (void)::pthread_detach(reaper);
    return;
  }
  for (unsigned i = 0; i < c.threads; ++i) (void)::pthread_join(c.ids[i], nullptr);
  delete &c;
}

bool PrivateTable::call(void (*body)(void*) noexcept, void* argument) noexcept {
  OneShot done;
  Job job(body, argument);
  job.done_ = &done;
  post(job);
  while (!done.is_set()) {
    constexpr std::int64_t kPoll = 250'000'000;
    done.wait(kPoll);
    if (generation() != born_) return false;  // a signal handler has forked, and this is the child
  }
  return true;
}

void PrivateTable::post(Job& job) noexcept {
  Core& c = *core_;
  const std::lock_guard lock(c.mutex);
  if (job.queued_) return;
  job.queued_ = true;
  job.next_ = nullptr;
  (c.last != nullptr ? c.last->next_ : c.first) = &job;
  c.last = &job;
  c.work.notify_one();
}

void PrivateTable::retract(Job& job) noexcept {
  Core& c = *core_;
  std::unique_lock lock(c.mutex);
  if (job.queued_) {
    Job** at = &c.first;
    Job* before = nullptr;
    while (*at != &job) {
      before = *at;
      at = &(*at)->next_;
    }
    *at = job.next_;
    if (c.last == &job) c.last = before;
    job.queued_ = false;
  }
  while (job.running_ != 0) {
    const std::uint32_t seen = c.ended.now();
    lock.unlock();
    constexpr std::int64_t kPoll = 250'000'000;
    c.ended.wait(seen, kPoll);
    lock.lock();
  }
}

int PrivateTable::start(pthread_t& thread, const pthread_attr_t* attributes, void* (*body)(void*),
                        void* argument) noexcept {
  struct Start {
    void* (*body)(void*);
    void* argument;
  };
  auto* const how = new (std::nothrow) Start{body, argument};
  if (how == nullptr) return ENOMEM;
  int rc = EAGAIN;
  const auto run_body = [](void* s) -> void* {
    in_table = true;
    const Start its = *static_cast<Start*>(s);
    delete static_cast<Start*>(s);
    return its.body(its.argument);
  };
  // A new thread shares the descriptor table of the thread that starts it, so a thread of the table does
  // this.
  const bool ran = call([&]() noexcept { rc = ::pthread_create(&thread, attributes, run_body, how); });
  if (ran && rc != 0) delete how;
  return ran ? rc : EAGAIN;
}

}  // namespace lmdbio
