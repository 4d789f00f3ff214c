// Pieces of a window change places, as fast as can be, while everybody reads them in every way there is:
// plain loads of threads, write(2) into a pipe, O_DIRECT writes from the window, process_vm_readv, forked
// children. Whoever sees a wrong byte, a fault or a short transfer says so.
//   window_torture make FILE MIB
//   window_torture run FILE SECONDS SCRATCH    SCRATCH: a directory for the direct writes
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lmdbio/base/unique_fd.h"
#include "lmdbio/window/window.h"
#include "tests/support/rng.h"

namespace lmdbio {
namespace {

using window::Staging;
using window::Window;

constexpr std::size_t kChunk = 2 * Window::kHugePage, kPage = 4096, kTransfer = 64 << 10;
constexpr int kPublishers = 2, kReclaimers = 2, kReaders = 3;
constexpr int kMissing = 77;

std::uint64_t word_at(std::uint64_t offset) noexcept { return (offset + 8) * 0x9E3779B97F4A7C15u; }

bool right(const std::byte* bytes, std::uint64_t offset, std::size_t size) noexcept {
  std::uint64_t wrong = 0;
  for (std::size_t at = 0; at < size; at += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes + at, 8);
    wrong |= word ^ word_at(offset + at);
  }
  return wrong == 0;
}

int make(const char* path, std::uint64_t mib) {
  const UniqueFd fd(::open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  // The last piece is no whole one.
  const std::uint64_t size = (mib << 20) + 3 * kPage;
  std::vector<std::uint64_t> block(kPage / 8);
  for (std::uint64_t at = 0; at < size; at += kPage) {
    for (std::size_t w = 0; w < block.size(); ++w) block[w] = word_at(at + 8 * w);
    if (::write(fd.get(), block.data(), kPage) != static_cast<ssize_t>(kPage)) {
      std::perror(path);
      return 1;
    }
  }
  return ::fdatasync(fd.get()) == 0 ? 0 : 1;
}

/// A buffer for O_DIRECT.
struct Aligned {
  explicit Aligned(std::size_t size) : data(static_cast<std::byte*>(std::aligned_alloc(kPage, size))) {}
  ~Aligned() { std::free(data); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  std::byte* const data;
};

class Torture {
 public:
  Torture(Window window, UniqueFd buffered, UniqueFd direct, std::uint64_t size, std::string scratch)
      : window_(std::move(window)),
        buffered_(std::move(buffered)),
        direct_(std::move(direct)),
        size_(size),
        scratch_(std::move(scratch)),
        chunks_((size + kChunk - 1) / kChunk),
        resident_(chunks_, false),
        busy_(std::make_unique<std::atomic_flag[]>(chunks_)) {}

  int run(double seconds) {
    std::vector<std::thread> threads;
    std::uint64_t seed = 1;
    const auto start = [&](void (Torture::*what)(test::Rng&), int n) {
      for (int i = 0; i < n; ++i)
        threads.emplace_back([this, what, s = seed++] {
          test::Rng rng(s);
          (this->*what)(rng);
        });
    };
    start(&Torture::publish, kPublishers);
    start(&Torture::reclaim, kReclaimers);
    start(&Torture::read, kReaders);
    start(&Torture::write_pipe, 1);
    start(&Torture::write_direct, 1);
    start(&Torture::read_as_process, 1);
    start(&Torture::fork_children, 1);
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    stop_ = true;
    for (std::thread& t : threads) t.join();
    std::printf("reads %" PRIu64 " publishes %" PRIu64 " reclaims %" PRIu64 " refused %" PRIu64
                " forks %" PRIu64 " child_reads %" PRIu64 " piped %" PRIu64 " direct %" PRIu64
                " process_vm %" PRIu64 " wrong %" PRIu64 "\n",
                words_.load(), publishes_.load(), reclaims_.load(), refused_.load(), forks_.load(),
                child_words_.load(), piped_.load(), written_.load(), process_.load(), wrong_.load());
    return wrong_ == 0 ? 0 : 1;
  }

 private:
  const std::byte* at(std::uint64_t offset) const noexcept { return window_.base() + offset; }
  bool over() const noexcept { return stop_.load(std::memory_order_relaxed) || wrong_ > 20; }
  /// A place for `size` bytes, a multiple of a page.
  std::uint64_t place(test::Rng& rng, std::size_t size) const {
    return rng.next() % ((size_ - size) / kPage + 1) * kPage;
  }
  void complain(const char* what, std::uint64_t offset, long got) {
    if (wrong_++ < 20)
      std::fprintf(stderr, "%s at %" PRIu64 ": %ld, %s\n", what, offset, got, std::strerror(errno));
  }

  // Single flight: as the cache's state word.
  bool take(std::size_t chunk) noexcept { return !busy_[chunk].test_and_set(std::memory_order_acquire); }
  void leave(std::size_t chunk) noexcept { busy_[chunk].clear(std::memory_order_release); }

  void publish(test::Rng& rng) {
    while (!over()) {
      const std::size_t chunk = rng.next() % chunks_;
      const std::uint64_t offset = chunk * kChunk, bytes = std::min<std::uint64_t>(kChunk, size_ - offset);
      if (!take(chunk)) continue;
      if (!resident_[chunk]) fill(chunk, offset, bytes, rng);
      leave(chunk);
    }
  }
  void fill(std::size_t chunk, std::uint64_t offset, std::uint64_t bytes, test::Rng& rng) {
    Result<Staging> made = Staging::make(kChunk);
    if (!made) {
      ++refused_;
      return;
    }
    Staging staging = std::move(made).value();
    const int fd = direct_ && rng.next() % 4 != 0 ? direct_.get() : buffered_.get();
    for (std::uint64_t done = 0; done < bytes;) {
      const ssize_t n = ::pread(fd, staging.data() + done, bytes - done, static_cast<off_t>(offset + done));
      if (n <= 0) return complain("read", offset, n);
      done += static_cast<std::uint64_t>(n);
    }
    if (!window_.publish(offset, bytes, staging)) {
      ++refused_;
      return;
    }
    resident_[chunk] = true;
    ++publishes_;
  }

  void reclaim(test::Rng& rng) {
    while (!over()) {
      const std::size_t chunk = rng.next() % chunks_;
      if (!take(chunk)) continue;
      if (resident_[chunk]) {
        const std::uint64_t offset = chunk * kChunk;
        if (window_.restore(offset, kChunk)) {
          resident_[chunk] = false;
          ++reclaims_;
          // Who reads there next waits for the file system.
          if (rng.next() % 2 == 0)
            (void)::posix_fadvise(buffered_.get(), static_cast<off_t>(offset), kChunk, POSIX_FADV_DONTNEED);
        } else {
          ++refused_;
        }
      }
      leave(chunk);
    }
  }

  void read(test::Rng& rng) {
    std::uint64_t words = 0;
    while (!over()) {
      const std::size_t size = kPage << rng.next() % 8;
      const std::uint64_t offset = place(rng, size);
      errno = 0;
      if (!right(at(offset), offset, size)) complain("reader", offset, 0);
      words += size / 8;
    }
    words_ += words;
  }

  void write_pipe(test::Rng& rng) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return complain("pipe", 0, -1);
    const UniqueFd from(ends[0]), to(ends[1]);
    std::vector<std::byte> buffer(kTransfer);
    while (!over()) {
      const std::uint64_t offset = place(rng, kTransfer);
      const ssize_t n = ::write(to.get(), at(offset), kTransfer);
      if (n != static_cast<ssize_t>(kTransfer)) complain("write to a pipe", offset, n);
      for (ssize_t done = 0; done < n;) {
        const ssize_t m = ::read(from.get(), buffer.data() + done, static_cast<std::size_t>(n - done));
        if (m <= 0) return complain("read from a pipe", offset, m);
        done += m;
      }
      if (n == static_cast<ssize_t>(kTransfer) && !right(buffer.data(), offset, kTransfer))
        complain("pipe", offset, 0);
      ++piped_;
    }
  }

  void write_direct(test::Rng& rng) {
    const std::string path = scratch_ + "/direct";
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600));
    Aligned buffer(kTransfer);
    if (!fd) {
      std::fprintf(stderr, "without direct writes: %s\n", std::strerror(errno));
      return;
    }
    (void)::unlink(path.c_str());
    while (!over()) {
      const std::uint64_t offset = place(rng, kTransfer);
      const ssize_t n = ::pwrite(fd.get(), at(offset), kTransfer, 0);
      if (n != static_cast<ssize_t>(kTransfer)) {
        complain("direct write", offset, n);
        continue;
      }
      if (::pread(fd.get(), buffer.data, kTransfer, 0) != n || !right(buffer.data, offset, kTransfer))
        complain("direct write, read back", offset, n);
      ++written_;
    }
  }

  void read_as_process(test::Rng& rng) {
    std::vector<std::byte> buffer(kTransfer);
    while (!over()) {
      const std::uint64_t offset = place(rng, kTransfer);
      const iovec to{buffer.data(), kTransfer}, from{const_cast<std::byte*>(at(offset)), kTransfer};
      const ssize_t n = ::process_vm_readv(::getpid(), &to, 1, &from, 1, 0);
      if (n < 0 && (errno == EPERM || errno == ENOSYS) && process_ == 0) {
        std::fprintf(stderr, "without process_vm_readv: %s\n", std::strerror(errno));
        return;
      }
      if (n != static_cast<ssize_t>(kTransfer))
        complain("process_vm_readv", offset, n);
      else if (!right(buffer.data(), offset, kTransfer))
        complain("process_vm_readv, bytes", offset, n);
      ++process_;
    }
  }

  void fork_children(test::Rng& rng) {
    constexpr int kLooks = 32;
    while (!over()) {
      const std::uint64_t seed = rng.next();
      const pid_t child = ::fork();
      if (child < 0) return complain("fork", 0, -1);
      if (child == 0) {  // nothing here but loads and arithmetic
        test::Rng own(seed);
        int wrong = 0;
        for (int i = 0; i < kLooks; ++i) {
          const std::uint64_t offset = place(own, kTransfer);
          wrong |= !right(at(offset), offset, kTransfer);
        }
        ::_exit(wrong);
      }
      int status = -1;
      if (::waitpid(child, &status, 0) != child || status != 0) complain("child", 0, status);
      ++forks_;
      child_words_ += kLooks * kTransfer / 8;
    }
  }

  Window window_;
  const UniqueFd buffered_, direct_;
  const std::uint64_t size_;
  const std::string scratch_;
  const std::size_t chunks_;
  std::vector<char> resident_;  // each under its flag
  const std::unique_ptr<std::atomic_flag[]> busy_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> words_{0}, publishes_{0}, reclaims_{0}, refused_{0}, forks_{0}, child_words_{0},
      piped_{0}, written_{0}, process_{0}, wrong_{0};
};

int run(const char* path, double seconds, const char* scratch) {
  UniqueFd buffered(::open(path, O_RDONLY | O_CLOEXEC));
  struct stat st;
  if (!buffered || ::fstat(buffered.get(), &st) != 0) {
    std::perror(path);
    return 1;
  }
  UniqueFd direct(::open(path, O_RDONLY | O_CLOEXEC | O_DIRECT));
  if (!direct) std::fprintf(stderr, "without direct reads: %s\n", std::strerror(errno));
  const auto size = static_cast<std::uint64_t>(st.st_size);
  // Longer than the file, as maps are.
  Result<Window> window = Window::map(buffered.get(), 2 * size, kPage, false);
  if (!window || !window.value().prepare_restore(size)) return kMissing;
  Torture torture(std::move(window).value(), std::move(buffered), std::move(direct), size, scratch);
  return torture.run(seconds);
}

}  // namespace
}  // namespace lmdbio

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "make" && argc == 4) return lmdbio::make(argv[2], std::strtoull(argv[3], nullptr, 0));
  if (what == "run" && argc == 5) return lmdbio::run(argv[2], std::strtod(argv[3], nullptr), argv[4]);
  std::fprintf(stderr, "usage: window_torture make FILE MIB | run FILE SECONDS SCRATCH\n");
  return 2;
}
