#include "lmdbio/io/open_anew.h"

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
#include <new>
#include <utility>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/mapping.h"
#include "lmdbio/base/unique_fd.h"
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

/// What was found out, a word a file: no lock, which a forked child might find held.
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

/// A page of a file, mapped and there.  An open that drops the page cache takes it away: the kernel unmaps
/// what it drops.  Unlike counts of what is in the page cache, that is told to every user, and no other
/// thread's read brings the page back.
class Witness {
 public:
  explicit Witness(int fd) noexcept {
    std::byte any;
    Result<Mapping> map = Mapping::map_file(fd, 1, 1);
    if (!map || ::pread(fd, &any, 1, 0) != 1) return;
    map_ = std::move(map).value();
    pagemap_ = UniqueFd(::open("/proc/thread-self/pagemap", O_RDONLY | O_CLOEXEC));
    // Not a touch, which may end in a signal.
    there_ = ::madvise(map_.data(), map_.size(), MADV_POPULATE_READ) == 0 && present() == 1;
  }
  /// False also if it could not be told.
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

// In a thread of the private table.
Result<OpenedAnew> open_here(const Origin& origin, WhatToOpen what) noexcept {
  // A duplicate costs no open.  Where the system does not give one, the first open finds nothing out.
  Result<File> first = File::keep(origin, File::Kind::shared);
  const bool duplicated = first.has_value();
  if (!duplicated) first = File::keep(origin, File::Kind::buffered);
  if (!first) return first.error();
  OpenedAnew out{std::move(first).value(), !duplicated, std::nullopt, std::nullopt, false};
  AtOpen known = AtOpen::keeps;
  const int fd = out.buffered.fd();
  if (on_fuse(fd)) known = memory.find(origin.id);
  std::optional<Witness> witness;
  if (known == AtOpen::unknown) witness.emplace(fd);
  if (what.direct)
    if (Result<File> direct = File::keep(origin, File::Kind::direct); direct)
      out.direct.emplace(std::move(direct).value());
  if (duplicated && known != AtOpen::drops && !(witness && witness->is_gone())) {
    if (Result<File> own = File::keep(origin, File::Kind::buffered); own) {
      out.buffered = std::move(own).value();
      out.own = true;
    }
  }
  if (witness && *witness && (out.direct || (duplicated && out.own))) {
    known = witness->is_gone() ? AtOpen::drops : AtOpen::keeps;
    memory.keep(origin.id, known);
  }
  out.drops_cache = known == AtOpen::drops;
  if (what.exact && !out.drops_cache)
    if (Result<File> exact = File::keep(origin, File::Kind::exact); exact)
      out.exact.emplace(std::move(exact).value());
  return out;
}

}  // namespace

Result<OpenedAnew> open_anew(const Origin& origin, WhatToOpen what) noexcept {
  if (PrivateTable::inside()) return open_here(origin, what);
  const std::shared_ptr<PrivateTable> table = PrivateTable::get();
  if (table == nullptr) return Status::from_errno(EBADF);
  std::unique_ptr<Result<OpenedAnew>> out(new (std::nothrow) Result<OpenedAnew>(Status::from_errno(EBADF)));
  if (out == nullptr) return Status::from_errno(ENOMEM);
  bool ran;
  {
    const AsyncSignalsAllowed program;  // a server may not answer
    ran = table->call([&]() noexcept { *out = open_here(origin, what); });
  }
  if (ran) return std::move(*out);
  (void)out.release();  // a handler has forked, and this is the child: the parent's thread was writing it
  return Status::from_errno(EBADF);
}

}  // namespace lmdbio
