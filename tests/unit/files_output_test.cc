// Output: any sequence of pieces, without copies of those that last, and errors.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lmdbio/base/unique_fd.h"
#include "lmdbio/files/output.h"

namespace lmdbio::files {
namespace {

UniqueFd temporary() { return UniqueFd(::open(::testing::TempDir().c_str(), O_TMPFILE | O_RDWR, 0600)); }

std::string contents(int fd) {
  std::string out(static_cast<std::size_t>(::lseek(fd, 0, SEEK_END)), '\0');
  EXPECT_EQ(::pread(fd, out.data(), out.size(), 0), static_cast<ssize_t>(out.size()));
  return out;
}

TEST(Output, AnyPieces) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const std::size_t most = std::size_t{1} << (5 + seed);  // up to 16 MiB
    const std::string lasting(most, static_cast<char>('a' + seed));
    const UniqueFd fd = temporary();
    Output out(fd.get());
    std::string expected;
    for (int i = 0; i < 3000 && expected.size() < (std::size_t{32} << 20); ++i) {
      const std::size_t n = std::uniform_int_distribution<std::size_t>(0, most)(random) >> random() % 10;
      switch (random() % 4) {
        case 0: {
          std::string gone(n, 'z');
          ASSERT_EQ(out.append(gone), 0);
          expected += gone;
          break;
        }
        case 1:
          ASSERT_EQ(out.append_zeros(n % 2000), 0);
          expected.append(n % 2000, '\0');
          break;
        case 2:
          if (random() % 50 == 0) {
            ASSERT_EQ(out.flush(), 0);
          }
          break;
        default:
          ASSERT_EQ(out.append_lasting(std::string_view(lasting).substr(0, n)), 0);
          expected.append(lasting, 0, n);
      }
    }
    ASSERT_EQ(out.flush(), 0);
    EXPECT_TRUE(contents(fd.get()) == expected);
  }
}

TEST(Output, LastingPiecesAreNotCopied) {
  const UniqueFd fd = temporary();
  Output out(fd.get());
  std::string lasting(100'000, 'a');
  ASSERT_EQ(out.append("first"), 0);
  ASSERT_EQ(out.append_lasting(lasting), 0);
  lasting.assign(lasting.size(), 'b');
  ASSERT_EQ(out.flush(), 0);
  EXPECT_EQ(contents(fd.get()), "first" + lasting);
}

TEST(Output, BytesThatCannotBeRead) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  char* const bytes = static_cast<char*>(
      ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(bytes, MAP_FAILED);
  ASSERT_EQ(::mprotect(bytes + page, page, PROT_NONE), 0);
  const UniqueFd fd = temporary();
  Output out(fd.get());
  ASSERT_EQ(out.append("first"), 0);
  ASSERT_EQ(out.append_lasting({bytes, 2 * page}), 0);
  EXPECT_EQ(out.flush(), EFAULT);
  EXPECT_EQ(out.flush(), 0);  // nothing waits any more
  EXPECT_EQ(write_all(fd.get(), {bytes + page, page}), EFAULT);
  ::munmap(bytes, 2 * page);
}

// A write to a pipe that a signal interrupts ends early, or fails with EINTR.
TEST(Output, InterruptedWrites) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd from(ends[0]);
  UniqueFd to(ends[1]);
  const pthread_t writer = ::pthread_self();
  std::string got;
  std::thread reader([&] {
    std::vector<char> buffer(5000);
    for (ssize_t n; (n = ::read(from.get(), buffer.data(), buffer.size())) > 0;) {
      got.append(buffer.data(), static_cast<std::size_t>(n));
      (void)::pthread_kill(writer, SIGUSR1);
    }
  });
  std::string expected;
  {
    Output out(to.get());
    std::vector<std::string> pieces;
    for (char c = 'a'; c <= 'z'; ++c) pieces.emplace_back(300'001, c);
    for (const std::string& piece : pieces) {
      EXPECT_EQ(out.append(piece.substr(0, 700)), 0);
      EXPECT_EQ(out.append_lasting(piece), 0);
      expected.append(piece, 0, 700).append(piece);
    }
    EXPECT_EQ(out.flush(), 0);
  }
  to.reset();
  reader.join();
  EXPECT_TRUE(got == expected);
}

TEST(Output, ClosedPipe) {
  ASSERT_NE(::signal(SIGPIPE, SIG_IGN), SIG_ERR);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  const UniqueFd to(ends[1]);
  Output out(to.get());
  ASSERT_EQ(out.append("x"), 0);
  EXPECT_EQ(out.flush(), EPIPE);
}

}  // namespace
}  // namespace lmdbio::files
