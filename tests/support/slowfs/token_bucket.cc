#include "tests/support/slowfs/token_bucket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "lmdbio/base/unique_fd.h"

namespace lmdbio::slowfs {

struct TokenBucket::Shared {
  static constexpr char kMagic[16] = "slowfs bucket 1";
  char magic[16];
  char boot_id[48];  // monotonic times mean nothing after the next boot
  using Word = std::atomic<std::uint64_t>;
  Word rate, free_ns, bytes, transfers, busy_ns, begin_ns;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

namespace {

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(TokenBucket::Clock::now().time_since_epoch() /
                                    std::chrono::nanoseconds(1));
}

std::string boot_id() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(in, id);
  return id.substr(0, 47);
}

[[noreturn]] void fail(const std::string& file, const char* what) {
  throw std::runtime_error(file + ": " + what + ": " + std::strerror(errno));
}

}  // namespace

TokenBucket::TokenBucket(const std::string& file) {
  UniqueFd fd;
  int flags = MAP_SHARED | MAP_ANONYMOUS;
  if (!file.empty()) {
    flags = MAP_SHARED;
    fd.reset(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (!fd) fail(file, "open");
    if (::flock(fd.get(), LOCK_EX) != 0) fail(file, "flock");
    struct stat st;
    if (::fstat(fd.get(), &st) != 0) fail(file, "stat");
    if (st.st_size != 0 && st.st_size != sizeof(Shared))
      throw std::runtime_error(file + ": not the file of a bandwidth group");
    if (st.st_size == 0 && ::ftruncate(fd.get(), sizeof(Shared)) != 0) fail(file, "ftruncate");
  }
  void* const at = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, flags, fd.get(), 0);
  if (at == MAP_FAILED) fail(file, "mmap");
  shared_ = static_cast<Shared*>(at);
  const std::string boot = boot_id();
  const bool empty = shared_->magic[0] == '\0';
  if (!empty && std::memcmp(shared_->magic, Shared::kMagic, sizeof Shared::kMagic) != 0) {
    ::munmap(at, sizeof(Shared));
    throw std::runtime_error(file + ": not the file of a bandwidth group");
  }
  if (empty || boot != std::string(shared_->boot_id, ::strnlen(shared_->boot_id, sizeof shared_->boot_id))) {
    shared_->free_ns = 0;
    reset();
    std::fill(std::begin(shared_->boot_id), std::end(shared_->boot_id), '\0');
    boot.copy(shared_->boot_id, sizeof shared_->boot_id - 1);
    std::memcpy(shared_->magic, Shared::kMagic, sizeof Shared::kMagic);
  }
  if (fd) ::flock(fd.get(), LOCK_UN);  // the mapping keeps it open
}

TokenBucket::~TokenBucket() { ::munmap(shared_, sizeof(Shared)); }

void TokenBucket::set_rate(std::uint64_t bytes_per_second) noexcept { shared_->rate = bytes_per_second; }

TokenBucket::Clock::time_point TokenBucket::take(std::uint64_t bytes) noexcept {
  const std::uint64_t rate = shared_->rate, now = now_ns();
  if (rate == 0 || bytes == 0) return Clock::time_point(std::chrono::nanoseconds(now));
  const std::uint64_t cost = (bytes * 1'000'000'000 + rate - 1) / rate;  // a request has few MiB: no overflow
  std::uint64_t was_free = shared_->free_ns, begin;
  do begin = std::max(was_free, now);
  while (!shared_->free_ns.compare_exchange_weak(was_free, begin + cost));
  shared_->bytes += bytes;
  ++shared_->transfers;
  shared_->busy_ns += cost;
  std::uint64_t none = 0;
  shared_->begin_ns.compare_exchange_strong(none, begin);
  return Clock::time_point(std::chrono::nanoseconds(begin + cost));
}

nlohmann::json TokenBucket::json() const {
  return {{"rate", shared_->rate.load()},           {"bytes", shared_->bytes.load()},
          {"transfers", shared_->transfers.load()}, {"busy_ns", shared_->busy_ns.load()},
          {"begin_ns", shared_->begin_ns.load()},   {"free_ns", shared_->free_ns.load()}};
}

void TokenBucket::reset() noexcept {
  for (Shared::Word* w : {&shared_->bytes, &shared_->transfers, &shared_->busy_ns, &shared_->begin_ns})
    *w = 0;
}

}  // namespace lmdbio::slowfs
