#include "lmdbio/io/open_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/mapping.h"
#include "lmdbio/base/unique_fd.h"
#include "lmdbio/io/file_system.h"
#include "lmdbio/io/private_table.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef FUSE_SUPER_MAGIC
#define FUSE_SUPER_MAGIC 0x65735546
#endif

namespace lmdbio {
namespace {

enum class AtOpen : unsigned char { unknown, keeps, drops };

/// Remembers for each file, in one word, whether opens drop its page cache.  Uses no lock, since a forked
/// child could find the lock held.
class Memory {
 public:
  AtOpen find(const FileIdentity& id) const noexcept {
    const std::uint64_t hash = hash_of(id), word = words_[hash % kWords].load(std::memory_order_relaxed);
    return (word & ~kWhat) == (hash & ~kWhat) ? static_cast<AtOpen>(word & kWhat) : AtOpen::unknown;
  }
  void keep(const FileIdentity& id, AtOpen what) noexcept {
    const std::uint64_t hash = hash_of(id);
    words_[hash % kWords].store((hash & ~kWhat) | static_cast<std::uint64_t>(what),
                                std::memory_order_relaxed);
  }

 private:
  static constexpr std::uint64_t kWords = 61, kWhat = 3;
  static std::uint64_t hash_of(const FileIdentity& id) noexcept {
    std::uint64_t h = (id.ino ^ (id.dev << 32 | id.dev >> 32)) * 0x9E3779B97F4A7C15u;
    h ^= h >> 29;
    return h * 0xBF58476D1CE4E5B9u;
  }
  std::array<std::atomic<std::uint64_t>, kWords> words_{};
};
constinit Memory memory;

bool on_fuse(int fd) noexcept {
  struct statfs at;
  return ::fstatfs(fd, &at) == 0 && static_cast<long>(at.f_type) == FUSE_SUPER_MAGIC;
}

/// Detects that an open drops the page cache.  Maps one resident page of the file: the kernel unmaps a page
/// that it drops.  Every user can see this, unlike counts of resident pages.  A read by another thread does
/// not bring the page back into the mapping.
class Witness {
 public:
  explicit Witness(int fd) noexcept {
    std::byte any;
    Result<Mapping> map = Mapping::map_file(fd, 1, 1);
    if (!map || ::pread(fd, &any, 1, 0) != 1) return;
    map_ = std::move(map).value();
    pagemap_ = UniqueFd(::open("/proc/thread-self/pagemap", O_RDONLY | O_CLOEXEC));
    // madvise(2) returns an error where a memory access would raise a signal.
    there_ = ::madvise(map_.data(), map_.size(), MADV_POPULATE_READ) == 0 && present() == 1;
  }
  /// Also returns false if the kernel does not report it.
  bool is_gone() const noexcept { return there_ && present() == 0; }
  explicit operator bool() const noexcept { return there_; }

 private:
  int present() const noexcept {
    std::uint64_t bits = 0;
    const auto page =
        reinterpret_cast<std::uintptr_t>(map_.data()) / static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    if (!pagemap_ ||
        ::pread(pagemap_.get(), &bits, sizeof bits, static_cast<off_t>(page * sizeof bits)) != sizeof bits)
      return -1;
    return static_cast<int>(bits >> 63);
  }
  Mapping map_;
  UniqueFd pagemap_;
  bool there_ = false;
};

struct Registered {
  FileIdentity id;
  std::weak_ptr<const OpenFile> file;
};
constinit SignalSafeMutex registry_mutex;
std::vector<Registered>* registry = nullptr;  // guarded by the mutex; never freed: files are closed at exit

bool same_inode(const FileIdentity& a, const FileIdentity& b) noexcept {
  return a.dev == b.dev && a.ino == b.ino;
}

// Call with the mutex held.
std::shared_ptr<const OpenFile> find_registered(const FileIdentity& id) noexcept {
  if (registry == nullptr) return nullptr;
  for (const Registered& r : *registry)
    if (same_inode(r.id, id))
      if (std::shared_ptr<const OpenFile> file = r.file.lock(); file != nullptr) return file;
  return nullptr;
}

}  // namespace

void OpenFile::lock_registry() noexcept {
  registry_mutex.lock();
  File::lock_origins();
}
void OpenFile::unlock_registry() noexcept {
  File::unlock_origins();
  registry_mutex.unlock();
}

OpenFile::OpenFile(File base) noexcept : base_(std::move(base)), residency_(-1) {}

OpenFile::~OpenFile() {
  delete buffered_.file.load();
  delete direct_.file.load();
  delete exact_.file.load();
}

// Collects the facts that need the descriptor.
void OpenFile::learn() noexcept {
  (void)base_.with_fd([this](int fd) noexcept {
    local_ = is_local_file_system(fd);
    readahead_ = kernel_readahead(fd);
  });
  residency_ = Residency(base_, -1);
}

Result<std::shared_ptr<const OpenFile>> OpenFile::open(const char* path) noexcept {
  Result<File> file = File::open(path, File::Mode::buffered);
  if (!file) return file.error();
  std::shared_ptr<const OpenFile> made = adopt(std::move(file).value());
  if (made == nullptr) return Status::from_errno(ENOMEM);
  return made;
}

std::shared_ptr<const OpenFile> OpenFile::adopt(File buffered) noexcept {
  try {
    std::shared_ptr<OpenFile> made(new OpenFile(std::move(buffered)));
    if (const Result<FileIdentity> id = made->base_.identity(); id) made->id_ = id.value();
    made->learn();
    return made;
  } catch (...) {
    return nullptr;
  }
}

// Call in a thread of the private table.
Result<std::shared_ptr<const OpenFile>> OpenFile::open_here(const Origin& origin, With with) noexcept {
  const bool exact = with == With::exact_alone && memory.find(origin.id) != AtOpen::drops;
  const File::Kind kind = exact ? File::Kind::exact : File::Kind::buffered;
  // A duplicate needs no open.  If the system does not allow duplicates, the first open cannot be tested.
  Result<File> first = File::keep(origin, File::Kind::shared);
  const bool duplicated = first.has_value();
  if (!duplicated) first = File::keep(origin, kind);
  bool is_exact = exact && !duplicated;
  if (!first && is_exact) {
    first = File::keep(origin, File::Kind::buffered);
    is_exact = false;
  }
  if (!first) return first.error();
  std::shared_ptr<OpenFile> out;
  try {
    out.reset(new OpenFile(std::move(first).value()));
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
  out->base_is_exact_ = is_exact;
  AtOpen known = AtOpen::keeps;
  const int fd = out->base_.fd();
  if (on_fuse(fd)) known = memory.find(origin.id);
  std::optional<Witness> witness;
  if (known == AtOpen::unknown) witness.emplace(fd);
  const bool direct = with == With::direct && out->direct() != nullptr;
  Result<File> anew = Status::from_errno(EBADF);
  if (duplicated && known != AtOpen::drops && !(witness && witness->is_gone())) anew = out->base_.again(kind);
  if (witness && *witness && (direct || anew)) {
    known = witness->is_gone() ? AtOpen::drops : AtOpen::keeps;
    memory.keep(origin.id, known);
  }
  // Do not use a descriptor without read-ahead as the only one.
  if (anew && !(exact && known == AtOpen::drops)) {
    out->base_ = std::move(anew).value();
    out->base_is_exact_ = exact;
  }
  out->id_ = origin.id;
  out->opens_drop_cache_ = known == AtOpen::drops;
  out->learn();
  return std::shared_ptr<const OpenFile>(std::move(out));
}

Result<std::shared_ptr<const OpenFile>> OpenFile::get(const Origin& origin, With with) noexcept {
  using Opened = Result<std::shared_ptr<const OpenFile>>;
  std::shared_ptr<const OpenFile> there;
  {
    const std::lock_guard lock(registry_mutex);
    there = find_registered(origin.id);
  }
  if (there != nullptr) {
    there->base_.add_origin(origin);
    return there;
  }
  Opened made = Status::from_errno(EBADF);
  if (PrivateTable::inside()) {
    made = open_here(origin, with);
  } else {
    const std::shared_ptr<PrivateTable> table = PrivateTable::get();
    if (table == nullptr) return Status::from_errno(EBADF);
    std::unique_ptr<Opened> out(new (std::nothrow) Opened(Status::from_errno(EBADF)));
    if (out == nullptr) return Status::from_errno(ENOMEM);
    bool ran;
    {
      const AsyncSignalsAllowed program;  // the open may wait for a server
      ran = table->call([&]() noexcept { *out = open_here(origin, with); });
    }
    if (!ran) {
      (void)out.release();  // a signal handler has forked while a thread of the parent was writing to *out
      return Status::from_errno(EBADF);
    }
    made = std::move(*out);
  }
  if (!made) return made;
  Opened faster = made;  // the file of another thread that was faster; ours is then closed after the unlock
  try {
    const std::lock_guard lock(registry_mutex);
    if (there = find_registered(origin.id); there != nullptr) {
      faster = there;
    } else {
      if (registry == nullptr) registry = new std::vector<Registered>;
      std::erase_if(*registry, [](const Registered& r) { return r.file.expired(); });
      registry->push_back({origin.id, made.value()});
    }
  } catch (...) {
    return Status::from_errno(ENOMEM);
  }
  if (there != nullptr) there->base_.add_origin(origin);
  return faster;
}

const File* OpenFile::get_or_open(Later& later, File::Kind kind) const noexcept {
  if (const File* const there = later.file.load(std::memory_order_acquire); there != nullptr) return there;
  if (later.impossible.load(std::memory_order_relaxed)) return nullptr;
  Result<File> made = base_.again(kind);
  if (!made) {
    const int error = made.error().raw();
    if (error == ENOTSUP || error == EINVAL) later.impossible.store(true, std::memory_order_relaxed);
    return later.file.load(std::memory_order_acquire);
  }
  bool crowded = false;
  if (made.value().kept())
    (void)made.value().with_fd([&](int fd) noexcept { crowded = PrivateTable::crowded(fd); });
  if (crowded) return later.file.load(std::memory_order_acquire);
  std::unique_ptr<const File> mine(new (std::nothrow) File(std::move(made).value()));
  const File* before = nullptr;
  if (mine == nullptr) return nullptr;
  if (!later.file.compare_exchange_strong(before, mine.get(), std::memory_order_acq_rel))
    return before;  // another thread was faster
  return mine.release();
}

}  // namespace lmdbio
