#include "lmdbio/io/file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/base/align.h"
#include "lmdbio/base/fork_safe_mutex.h"

namespace lmdbio {
namespace {

// The alignment that is used if the kernel reports none.  It suffices for every device with blocks of at most
// a page.
constexpr std::size_t kUsualAlignment = 4096;

Status regular(const struct stat& st) noexcept {
  if (S_ISREG(st.st_mode)) return Status();
  return Status::from_errno(S_ISDIR(st.st_mode) ? EISDIR : EINVAL);
}

Status regular_fd(int fd) noexcept {
  struct stat st;
  if (::fstat(fd, &st) != 0) return Status::from_errno(errno);
  return regular(st);
}

int open_retrying(const char* path, int flags) noexcept {
  int fd;
  do fd = ::open(path, flags | O_RDONLY | O_CLOEXEC | O_NOCTTY);
  while (fd < 0 && errno == EINTR);
  return fd;
}

bool same_inode(const struct stat& st, const FileIdentity& id) noexcept {
  return st.st_dev == id.dev && st.st_ino == id.ino;
}

// Opens `path` if it leads to the inode `id`.  Returns ESTALE if it leads to another file.  Checks this
// before the open, since opening another file may have side effects.
Result<UniqueFd> open_inode(const char* path, int flags, const FileIdentity& id) noexcept {
  struct stat st;
  if (::stat(path, &st) != 0) return Status::from_errno(errno);
  if (!same_inode(st, id)) return Status::from_errno(ESTALE);
  UniqueFd opened(open_retrying(path, flags | O_NONBLOCK));
  if (!opened) return Status::from_errno(errno);
  if (::fstat(opened.get(), &st) != 0) return Status::from_errno(errno);
  if (!same_inode(st, id)) return Status::from_errno(ESTALE);
  // O_NONBLOCK keeps the open from waiting if a pipe has replaced the file meanwhile.  The flag must not stay
  // set: with it, io_uring of some kernels does not wait for data.
  if (const int now = ::fcntl(opened.get(), F_GETFL); now >= 0)
    (void)::fcntl(opened.get(), F_SETFL, now & ~O_NONBLOCK);
  return opened;
}

// Duplicates the program's descriptor `fd` into the calling thread's table.  Returns ESTALE if it is not the
// inode `id`.
Result<UniqueFd> duplicate_of_programs(int fd, const FileIdentity& id) noexcept {
  UniqueFd made(PrivateTable::duplicate_of_programs(fd));
  if (!made) return Status::from_errno(errno);
  struct stat st;
  if (::fstat(made.get(), &st) != 0) return Status::from_errno(errno);
  if (!same_inode(st, id)) return Status::from_errno(ESTALE);
  return made;
}

// Returns the alignment of direct reads, in bytes, as the kernel reports it, or 0 if direct reads do not
// work.
std::size_t direct_alignment_of(int fd) noexcept {
#ifdef STATX_DIOALIGN
  struct statx stx;
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) == 0 && (stx.stx_mask & STATX_DIOALIGN) != 0) {
    const std::size_t a = std::max<std::size_t>(stx.stx_dio_mem_align, stx.stx_dio_offset_align);
    return a == 0 || is_power_of_two(a) ? a : 0;
  }
#else
  (void)fd;
#endif
  return kUsualAlignment;
}

// Tests direct reads with one block, since some file systems accept O_DIRECT and then refuse each read.
bool direct_works(int fd, std::size_t alignment) noexcept {
  void* const block = std::aligned_alloc(alignment, alignment);
  if (block == nullptr) return false;
  ssize_t n;
  do n = ::pread(fd, block, alignment, 0);
  while (n < 0 && errno == EINTR);
  std::free(block);
  return n >= 0;
}

}  // namespace

File::File(UniqueFd owned, int fd, std::size_t direct_alignment) noexcept
    : owned_(std::move(owned)),
      fd_(fd),
      direct_(direct_alignment != 0),
      alignment_(direct_alignment != 0 ? direct_alignment : 1) {}

Result<File> File::open(const char* path, Mode mode) noexcept {
  // Check before the open, which would wait for the writer of a pipe.
  struct stat st;
  if (::stat(path, &st) != 0) return Status::from_errno(errno);
  if (const Status s = regular(st); !s.ok()) return s;
  if (mode == Mode::direct_if_possible) {
    UniqueFd fd(open_retrying(path, O_DIRECT));
    if (fd && regular_fd(fd.get()).ok()) {
      const std::size_t alignment = direct_alignment_of(fd.get());
      if (alignment != 0 && direct_works(fd.get(), alignment)) {
        const int n = fd.get();
        return File(std::move(fd), n, alignment);
      }
    }
  }
  UniqueFd fd(open_retrying(path, 0));
  if (!fd) return Status::from_errno(errno);
  if (const Status s = regular_fd(fd.get()); !s.ok()) return s;
  const int n = fd.get();
  return File(std::move(fd), n, 0);
}

Result<File> File::from_fd(int fd, Take take) noexcept {
  if (const Status s = regular_fd(fd); !s.ok()) return s;
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return Status::from_errno(errno);
  std::size_t alignment = 0;
  if ((flags & O_DIRECT) != 0) {
    alignment = direct_alignment_of(fd);
    if (alignment == 0) alignment = kUsualAlignment;  // O_DIRECT was accepted, so use the strictest rule
  }
  if (take == Take::borrow) return File(UniqueFd(), fd, alignment);
  UniqueFd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own) return Status::from_errno(errno);
  const int n = own.get();
  return File(std::move(own), n, alignment);
}

namespace {

// Prepares a newly opened descriptor for `kind`.  Returns the alignment of direct reads in bytes, 0 for
// other kinds.
Result<std::size_t> prepare(int fd, File::Kind kind) noexcept {
  if (kind == File::Kind::direct) {
    const std::size_t alignment = direct_alignment_of(fd);
    if (alignment == 0 || !direct_works(fd, alignment)) return Status::from_errno(ENOTSUP);
    return alignment;
  }
  if (kind == File::Kind::exact)
    if (const int e = ::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); e != 0) return Status::from_errno(e);
  return std::size_t{0};
}

constexpr int flags_of(File::Kind kind) noexcept { return kind == File::Kind::direct ? O_DIRECT : 0; }

}  // namespace

Result<File> File::reopen(int fd, Kind kind) noexcept {
  if (const Status s = regular_fd(fd); !s.ok()) return s;
  const Result<FileIdentity> id = identity_of(fd);
  if (!id) return id.error();
  char self[48];
  // Not /proc/self, which shows the descriptor table of the first thread.
  (void)std::snprintf(self, sizeof self, "/proc/thread-self/fd/%d", fd);
  Result<UniqueFd> opened = open_inode(self, flags_of(kind), id.value());
  if (!opened) return opened.error();
  const int n = opened.value().get();
  const Result<std::size_t> alignment = prepare(n, kind);
  if (!alignment) return alignment.error();
  return File(std::move(opened.value()), n, alignment.value());
}

// --- kept files -------------------------------------------------------------------------------------------

namespace {
constinit SignalSafeMutex origins_mutex;
}  // namespace

void File::lock_origins() noexcept { origins_mutex.lock(); }
void File::unlock_origins() noexcept { origins_mutex.unlock(); }

/// The origins from which a file can be reopened, the newest first.  Each time the program opens the file
/// adds one.  An origin may be stale: after the program has closed its descriptor, the number and the path
/// may lead to another file.  Any thread.
class File::Origins {
 public:
  struct One {
    int fd;
    std::string path;  ///< empty if it is not known
  };
  explicit Origins(const Origin& o) : id(o.id) { list_.push_back(one(o)); }
  void add(const Origin& o) {
    One made = one(o);
    const std::lock_guard lock(origins_mutex);
    std::erase_if(list_, [&](const One& x) { return x.fd == made.fd && x.path == made.path; });
    if (list_.size() == kMost) list_.pop_back();
    list_.insert(list_.begin(), std::move(made));
  }
  std::vector<One> list() const {
    const std::lock_guard lock(origins_mutex);
    return list_;
  }
  const FileIdentity id;

 private:
  static constexpr std::size_t kMost = 4;
  static One one(const Origin& o) { return {o.fd, o.path != nullptr ? o.path : ""}; }
  std::vector<One> list_;  // guarded by origins_mutex
};

class File::Home {
 public:
  Home(Kind kind, std::shared_ptr<Origins> origins) : kind_(kind), origins_(std::move(origins)) {}
  Home(const Home&) = delete;
  Home& operator=(const Home&) = delete;
  ~Home() {
    if (const int n = fd(); n >= 0) (void)PrivateTable::run([n]() noexcept { UniqueFd(n).reset(); });
  }

  std::shared_ptr<Home> another(Kind kind) const { return std::make_shared<Home>(kind, origins_); }
  Origins& origins() noexcept { return *origins_; }
  /// Opens the file for the process.  `thread`: a thread of the program, whose table has the program's
  /// descriptors.
  Status open_first(pid_t thread) noexcept;
  /// Returns the descriptor, and opens the file first if necessary.  Returns -1 if it cannot be opened.  Call
  /// this in a thread of the private table.
  int fd_here() noexcept;
  std::size_t alignment() const noexcept { return alignment_; }
  const std::shared_ptr<PrivateTable>& table() const noexcept { return table_; }

 private:
  /// Combines the fork generation in which a descriptor was opened with the descriptor + 1.
  static std::uint64_t word(unsigned generation, int fd) noexcept {
    return std::uint64_t{generation} << 32 | static_cast<std::uint32_t>(fd + 1);
  }
  /// Returns -1 if the file has not been opened in this process.
  int fd() const noexcept {
    const std::uint64_t now = opened_.load(std::memory_order_acquire);
    return now >> 32 == PrivateTable::generation() ? static_cast<int>(static_cast<std::uint32_t>(now)) - 1
                                                   : -1;
  }
  Status open(pid_t thread, bool first) noexcept;
  Result<UniqueFd> open_one(pid_t thread, bool first) const;

  const Kind kind_;
  const std::shared_ptr<Origins> origins_;
  std::shared_ptr<PrivateTable> table_;  // of the process that made this Home
  std::size_t alignment_ = 0;
  std::atomic<std::uint64_t> opened_{0};
};

// Opens the file through a descriptor of the program, else by a path.  The first open of Kind::shared does
// not fall back to a path: its caller handles the failure.
Result<UniqueFd> File::Home::open_one(pid_t thread, bool first) const {
  const std::vector<Origins::One> origins = origins_->list();
  Result<UniqueFd> made = Status::from_errno(EBADF);
  bool any = false;
  const auto is_over = [&](Result<UniqueFd> got) {
    if (got || !any) made = std::move(got);
    any = true;
    return made || made.error().raw() == EINVAL;  // EINVAL: direct reads do not work by any path
  };
  for (const Origins::One& o : origins) {
    if (o.fd < 0) continue;
    char program[64];
    (void)std::snprintf(program, sizeof program, "/proc/self/task/%d/fd/%d", static_cast<int>(thread), o.fd);
    if (is_over(kind_ == Kind::shared ? duplicate_of_programs(o.fd, origins_->id)
                                      : open_inode(program, flags_of(kind_), origins_->id)))
      return made;
  }
  if (kind_ == Kind::shared && first) return made;
  for (const Origins::One& o : origins)
    if (!o.path.empty() && is_over(open_inode(o.path.c_str(), flags_of(kind_), origins_->id))) return made;
  return made;
}

// Call in a thread of the private table.
Status File::Home::open(pid_t thread, bool first) noexcept {
  std::uint64_t before = opened_.load(std::memory_order_acquire);
  Result<UniqueFd> made = Status::from_errno(ENOMEM);
  try {
    made = open_one(thread, first);
  } catch (...) {
  }
  if (!made) return made.error();
  const Result<std::size_t> ready = prepare(made.value().get(), kind_);
  if (!ready) return ready.error();
  if (alignment_ == 0) alignment_ = ready.value();
  // Another thread of a forked child may have opened the file first.
  if (opened_.compare_exchange_strong(before, word(PrivateTable::generation(), made.value().get())))
    (void)made.value().release();
  return {};
}

Status File::Home::open_first(pid_t thread) noexcept {
  table_ = PrivateTable::get();
  if (table_ == nullptr) return Status::from_errno(EBADF);
  const AsyncSignalsAllowed program;  // the open may wait for a server
  Status st;
  return table_->call([&]() noexcept { st = open(thread, true); }) ? st : Status::from_errno(EBADF);
}

int File::Home::fd_here() noexcept {
  assert(PrivateTable::inside());
  if (const int there = fd(); there >= 0) return there;
  return open(::getpid(), false).ok() ? fd() : -1;  // first use in a forked child
}

Result<File> File::keep(const Origin& origin, Kind kind) noexcept {
  try {
    return open_home(std::make_shared<Home>(kind, std::make_shared<Origins>(origin)));
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
}

Result<File> File::open_home(std::shared_ptr<Home> home) noexcept {
  const pid_t program = PrivateTable::inside() ? ::getpid() : static_cast<pid_t>(::syscall(SYS_gettid));
  if (const Status st = home->open_first(program); !st.ok()) return st;
  File made(UniqueFd(), -1, home->alignment());
  made.home_ = std::move(home);
  return made;
}

void File::add_origin(const Origin& origin) const noexcept {
  if (home_ == nullptr) return;
  try {
    home_->origins().add(origin);
  } catch (...) {  // out of memory: the origin is not recorded
  }
}

Result<File> File::again(Kind kind) const noexcept {
  if (home_ == nullptr) return reopen(fd_, kind);
  try {
    return open_home(home_->another(kind));
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
}

int File::start_thread(pthread_t& thread, void* (*run)(void*), void* argument) const noexcept {
  if (home_ != nullptr) {
    const std::shared_ptr<PrivateTable> table = PrivateTable::get();
    return table != nullptr ? table->start(thread, nullptr, run, argument) : EAGAIN;
  }
  note_own_thread();
  sigset_t all, before;
  (void)::sigfillset(&all);
  (void)::pthread_sigmask(SIG_SETMASK, &all, &before);  // signal handlers run on the program's threads
  const int rc = ::pthread_create(&thread, nullptr, run, argument);
  (void)::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return rc;
}

int File::here() const noexcept { return home_->fd_here(); }

Result<FileIdentity> File::identity() const noexcept {
  Result<FileIdentity> id = Status::from_errno(EBADF);
  (void)with_fd([&id](int fd) noexcept { id = identity_of(fd); });
  return id;
}

bool File::is_inode(const FileIdentity& id) const noexcept {
  bool is = false;
  (void)with_fd([&](int fd) noexcept { is = lmdbio::is_inode(fd, id); });
  return is;
}

Result<std::uint64_t> File::size() const noexcept {
  const Result<FileIdentity> now = identity();
  if (!now) return now.error();
  return now.value().size;
}

}  // namespace lmdbio
