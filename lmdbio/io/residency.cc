#include "lmdbio/io/residency.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>

#include "lmdbio/base/mapping.h"

namespace lmdbio {
namespace {

// From linux/mman.h (Linux 6.5).
constexpr long kSysCachestat = 451;
struct CachestatRange {
  std::uint64_t off, len;  // len 0: to the end
};
struct Cachestat {
  std::uint64_t cache, dirty, writeback, evicted, recently_evicted;
};

constexpr std::uint64_t kMostSamples = 8;
constexpr uid_t kOverflowUid = 65534;  // the user `nobody`, and users without a mapping in a user namespace

std::uint64_t page_bytes() noexcept { return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)); }

// Pages [first, last) of a file, first < last.
struct Pages {
  std::uint64_t first, last;
  double share(std::uint64_t there) const noexcept {
    return std::min(1.0, static_cast<double>(there) / static_cast<double>(last - first));
  }
};

bool ask_cachestat(int fd, const CachestatRange& range, Cachestat& stat) noexcept {
  return ::syscall(kSysCachestat, fd, &range, &stat, 0) == 0;
}

// Returns false if mincore(2) reports all pages as resident.  It does this for users who neither own the file
// nor may write to it.
bool mincore_is_true(int fd, const struct stat& st) noexcept {
  if (st.st_uid == ::geteuid() && st.st_uid != kOverflowUid) return true;
  char self[32];
  (void)std::snprintf(self, sizeof self, "/proc/thread-self/fd/%d", fd);
  return ::faccessat(AT_FDCWD, self, W_OK, AT_EACCESS) == 0;
}

std::optional<double> by_cachestat(int fd, Pages p, std::uint64_t page) noexcept {
  Cachestat stat{};
  if (!ask_cachestat(fd, {p.first * page, (p.last - p.first) * page}, stat)) return {};
  return p.share(stat.cache);
}

// `mapped`: the address of the first page.
std::optional<double> count_present(Pages p, std::uint64_t page, const std::byte* mapped) noexcept {
  unsigned char present[4096];
  std::uint64_t there = 0;
  for (std::uint64_t i = 0; i < p.last - p.first; i += sizeof present) {
    const std::uint64_t n = std::min<std::uint64_t>(sizeof present, p.last - p.first - i);
    if (::mincore(const_cast<std::byte*>(mapped) + i * page, n * page, present) != 0) return {};
    there += static_cast<std::uint64_t>(
        std::count_if(present, present + n, [](unsigned char c) { return (c & 1) != 0; }));
  }
  return p.share(there);
}

// `mapped`: the address of the first page, or null.
std::optional<double> by_mincore(int fd, const struct stat& st, Pages p, std::uint64_t page,
                                 const std::byte* mapped) noexcept {
  if (!mincore_is_true(fd, st)) return {};  // the effective user may have changed
  const std::size_t bytes = (p.last - p.first) * page;
  Mapping map;
  if (mapped == nullptr) {
    void* const at = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(p.first * page));
    if (at == MAP_FAILED) return {};
    map = Mapping(at, bytes);
    mapped = map.data();
  }
  return count_present(p, page, mapped);
}

// Returns 1 if the byte is resident, 0 if it is not, and below 0 if the call does not work here.
int try_byte(int fd, std::uint64_t offset) noexcept {
  char byte;
  const iovec to = {&byte, 1};
  ssize_t n;
  do n = ::preadv2(fd, &to, 1, static_cast<off_t>(offset), RWF_NOWAIT);
  while (n < 0 && errno == EINTR);
  if (n >= 0) return 1;
  return errno == EAGAIN ? 0 : -1;
}

std::optional<double> by_sampling(int fd, Pages p, std::uint64_t page) noexcept {
  const std::uint64_t pages = p.last - p.first, samples = std::min(pages, kMostSamples);
  std::uint64_t there = 0;
  for (std::uint64_t i = 0; i < samples; ++i) {
    const std::uint64_t at = p.first + pages / samples * i + pages / samples / 2;
    const int found = try_byte(fd, at * page);
    if (found < 0) return {};
    there += static_cast<std::uint64_t>(found);
  }
  return static_cast<double>(there) / static_cast<double>(samples);
}

}  // namespace

Residency::Residency(int fd, Sampling sampling) noexcept : fd_(fd) {
  const int saved = errno;
  choose(fd, sampling);
  errno = saved;
}

Residency::Residency(const File& file, int programs_fd, Sampling sampling) noexcept
    : file_(&file), fd_(programs_fd) {
  const int saved = errno;
  (void)file.with_fd([&](int fd) noexcept { choose(fd, sampling); });
  errno = saved;
}

Residency::Residency(const Residency& other, int programs_fd, Sampling sampling) noexcept : Residency(other) {
  fd_ = programs_fd;
  if (sampling == Sampling::no && way_ == Way::sampling) way_ = Way::none;
}

void Residency::choose(int fd, Sampling sampling) noexcept {
  struct stat st;
  Cachestat stat{};
  if (::fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
    id_.dev = st.st_dev;
    id_.ino = st.st_ino;
    uid_ = ::geteuid();
    mincore_is_true_ = mincore_is_true(fd, st);
    if (ask_cachestat(fd, {0, 1}, stat))
      way_ = Way::cachestat;
    else if (mincore_is_true_)
      way_ = Way::mincore;
    else if (sampling == Sampling::yes && try_byte(fd, 0) >= 0)
      way_ = Way::sampling;
  }
}

std::optional<double> Residency::share(std::uint64_t offset, std::uint64_t bytes,
                                       const std::byte* mapped) const noexcept {
  if (way_ == Way::none) return {};
  const int saved = errno;
  std::optional<double> result;
  // cachestat(2) reads and maps nothing.  Neither does mincore(2) if there is a mapping already.  If the
  // program reuses the descriptor for another file between two calls, the result is wrong, which only costs
  // time.
  const bool harmless = way_ == Way::cachestat || (way_ == Way::mincore && mapped != nullptr);
  if (const auto size = file_ == nullptr || harmless ? size_if_inode(fd_, id_) : std::nullopt; size)
    result = ask(fd_, *size, offset, bytes, mapped);
  else if (file_ != nullptr)
    (void)file_->with_fd(
        [&](int fd) noexcept { result = ask(fd, size_known_here(fd), offset, bytes, mapped); });
  errno = saved;
  return result;
}

std::optional<double> Residency::share_read(std::uint64_t offset, std::uint64_t bytes,
                                            const std::byte* mapped) const noexcept {
  if (!mincore_is_true_ || ::geteuid() != uid_) return {};
  const int saved = errno;
  const std::uint64_t page = page_bytes();
  const std::optional<double> share =
      count_present({offset / page, (offset + bytes + page - 1) / page}, page, mapped + offset / page * page);
  errno = saved;
  return share;
}

std::optional<double> Residency::ask(int fd, std::uint64_t size, std::uint64_t offset, std::uint64_t bytes,
                                     const std::byte* mapped) const noexcept {
  std::optional<double> result;
  if (offset < size && bytes != 0) {
    const std::uint64_t page = page_bytes();
    const std::uint64_t end = offset + std::min(bytes, size - offset);
    const Pages p{offset / page, (end + page - 1) / page};
    const std::byte* const at = mapped != nullptr ? mapped + p.first * page : nullptr;
    if (way_ == Way::cachestat) result = by_cachestat(fd, p, page);
    if (struct stat st; way_ == Way::mincore && ::fstat(fd, &st) == 0)
      result = by_mincore(fd, st, p, page, at);
    if (way_ == Way::sampling) result = by_sampling(fd, p, page);
  }
  return result;
}

const char* Residency::how() const noexcept {
  switch (way_) {
    case Way::cachestat:
      return "cachestat";
    case Way::mincore:
      return "mincore";
    case Way::sampling:
      return "preadv2";
    case Way::none:
      break;
  }
  return "";
}

}  // namespace lmdbio
