#include "lmdbio/cli/residency.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <new>

#include "lmdbio/base/mapping.h"

namespace lmdbio::cli {
namespace {

// linux/mman.h of 6.5 and later.
constexpr long kSysCachestat = 451;
struct CachestatRange {
  std::uint64_t off, len;
};
struct Cachestat {
  std::uint64_t cache, dirty, writeback, evicted, recently_evicted;
};

bool mincore_is_true(int fd, const struct stat& st) noexcept {
  if (st.st_uid == ::geteuid() || ::geteuid() == 0) return true;
  char self[32];
  (void)std::snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
  return ::faccessat(AT_FDCWD, self, W_OK, AT_EACCESS) == 0;
}

}  // namespace

Residency page_cache_share(int fd, const struct stat& st) noexcept {
  const auto size = static_cast<std::uint64_t>(st.st_size);
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t pages = (size + page - 1) / page;
  const CachestatRange all{0, 0};
  Cachestat stat{};
  if (::syscall(kSysCachestat, fd, &all, &stat, 0) == 0)
    return {std::min(1.0, static_cast<double>(stat.cache) / static_cast<double>(pages)), "cachestat"};
  if (!mincore_is_true(fd, st)) return {};
  const Result<Mapping> map = Mapping::map_file(fd, size, page);
  if (!map) return {};
  constexpr std::uint64_t kStep = 1 << 16;  // pages asked for at once
  const std::unique_ptr<unsigned char[]> vec(new (std::nothrow) unsigned char[kStep]);
  if (vec == nullptr) return {};
  std::uint64_t resident = 0;
  for (std::uint64_t at = 0; at < pages; at += kStep) {
    const std::uint64_t n = std::min(kStep, pages - at);
    if (::mincore(map.value().data() + at * page, n * page, vec.get()) != 0) return {};
    resident += static_cast<std::uint64_t>(
        std::count_if(vec.get(), vec.get() + n, [](unsigned char c) { return (c & 1) != 0; }));
  }
  return {static_cast<double>(resident) / static_cast<double>(pages), "mincore"};
}

}  // namespace lmdbio::cli
