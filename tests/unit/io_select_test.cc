// Which engine is taken, and that its absence is no failure.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/base/log.h"
#include "lmdbio/io/engine_select.h"
#include "lmdbio/io/engine_threads.h"
#include "lmdbio/io/engine_uring.h"
#include "tests/support/child.h"
#include "tests/support/forbid.h"
#include "tests/support/scan.h"
#include "tests/support/temp_file.h"
#include "tests/support/test_bytes.h"

namespace lmdbio {
namespace {

using testing::forbid;
using testing::in_child;

constexpr std::size_t kBytes = 64 * 1024, kBlock = 4096;
constexpr int kNoFilter = 100;

class Select : public ::testing::Test {
 protected:
  Select() : temp_(testing::pattern(kBytes)), file_(opened(temp_)) {}
  static File opened(const testing::TempFile& t) {
    return std::move(File::open(t.path(), File::Mode::buffered).value());
  }
  // The name of what was chosen, after it has read the file; else what went wrong.
  std::string chosen(EngineKind wanted) const {
    const char* name = nullptr;
    const Result<std::unique_ptr<IoEngine>> e = select_engine(file_, 8, wanted, &name);
    if (!e) return "error " + std::to_string(e.error().raw());
    const testing::ScanResult r = testing::scan(*e.value(), kBytes, kBlock);
    return r.status.ok() && r.same && r.lost == 0 ? name : "wrong bytes";
  }
  // The same in a child in which `call` fails.
  void expect_without(long call, int error, EngineKind wanted, const std::string& name,
                      const std::string& why) {
    const auto child = in_child([&] {
      if (!forbid(call, error)) return kNoFilter;
      set_log_level(LogLevel::info);
      return chosen(wanted) == name && chosen(wanted) == name ? 0 : 1;
    });
    if (child.exit_code == kNoFilter) GTEST_SKIP() << "no seccomp filters here";
    EXPECT_EQ(child.exit_code, 0);
    EXPECT_EQ(child.err, "lmdbio: read engine: " + name + why + "\n") << "once, and why";
  }

  const testing::TempFile temp_;
  const File file_;
};

TEST_F(Select, EachKindByName) {
  const auto child = in_child([&] { return uring_engine(file_, 8) ? 1 : 0; });
  const char* const best = child.exit_code == 1 ? "io_uring" : "threads";
  EXPECT_EQ(chosen(EngineKind::automatic), best);
  EXPECT_EQ(chosen(EngineKind::uring), best);
  EXPECT_EQ(chosen(EngineKind::threads), "threads");
  EXPECT_EQ(chosen(EngineKind::pread), "pread");
}

TEST_F(Select, DepthAndName) {
  EXPECT_EQ(select_engine(file_, 0, EngineKind::automatic, nullptr).error().raw(), EINVAL);
  for (const EngineKind kind : {EngineKind::automatic, EngineKind::threads})
    EXPECT_EQ(select_engine(file_, 5, kind, nullptr).value()->caps().depth, 5u);
  EXPECT_EQ(select_engine(file_, 5, EngineKind::pread, nullptr).value()->caps().depth, 1u);
  EXPECT_TRUE(select_engine(file_, 1'000'000, EngineKind::automatic, nullptr)) << "more than a ring may have";
}

TEST_F(Select, ForbiddenRing) {
  if (uring_engine(file_, 8).has_error()) GTEST_SKIP() << "no io_uring here";
  for (const EngineKind wanted : {EngineKind::automatic, EngineKind::uring}) {
    expect_without(SYS_io_uring_setup, EPERM, wanted, "threads",
                   "; io_uring is not available: Operation not permitted");
    expect_without(SYS_io_uring_setup, ENOSYS, wanted, "threads",
                   "; io_uring is not available: Function not implemented");
    expect_without(SYS_io_uring_setup, ENOMEM, wanted, "threads",
                   "; io_uring is not available: Cannot allocate memory");
    expect_without(SYS_io_uring_enter, EPERM, wanted, "threads",
                   "; io_uring is not available: Operation not permitted");
  }
}

TEST_F(Select, ForbiddenThreads) {
  const auto child = in_child([&] {
    if (!forbid(SYS_clone3, EAGAIN) || !forbid(SYS_clone, EAGAIN)) return kNoFilter;
    if (threads_engine(file_, 8).has_value()) return 1;
    if (threads_engine(file_, 8).error().raw() != EAGAIN) return 2;
    return chosen(EngineKind::threads) == "pread" ? 0 : 3;
  });
  if (child.exit_code == kNoFilter) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(child.exit_code, 0);
}

TEST_F(Select, OneThreadIsEnough) {
  const auto child = in_child([&] {
    auto e = threads_engine(file_, 8);
    if (!e) return 1;
    if (!forbid(SYS_clone3, EAGAIN) || !forbid(SYS_clone, EAGAIN)) return kNoFilter;
    const auto r = testing::scan(*e.value(), kBytes, kBlock);
    return r.status.ok() && r.same && r.lost == 0 ? 0 : 2;
  });
  if (child.exit_code == kNoFilter) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(child.exit_code, 0);
}

// A ring whose io_uring_enter(2) is forbidden after the start: reads end with that, nobody hangs.
TEST_F(Select, RingForbiddenLater) {
  if (uring_engine(file_, 8).has_error()) GTEST_SKIP() << "no io_uring here";
  for (const int error : {EPERM, EAGAIN, EBUSY, EBADF}) {
    const auto child = in_child([&] {
      auto e = uring_engine(file_, 8);
      std::vector<std::byte> b(kBlock);
      if (!read_fully(*e.value(), 0, b).ok()) return 1;
      if (!forbid(SYS_io_uring_enter, error)) return kNoFilter;
      const Status s = read_fully(*e.value(), 0, b);
      return s.raw() == (error == EBUSY ? EAGAIN : error) ? 0 : 2;
    });
    if (child.exit_code == kNoFilter) GTEST_SKIP() << "no seccomp filters here";
    EXPECT_EQ(child.exit_code, 0) << error;
  }
  // The same with reads in flight: what has been read is still reaped, or the destructor waits for it.
  const auto child = in_child([&] {
    auto e = uring_engine(file_, 8);
    std::vector<std::byte> b(8 * kBlock);
    std::vector<ReadOp> ops;
    for (std::size_t i = 0; i < 8; ++i)
      ops.push_back({i * kBlock, std::span(b).subspan(i * kBlock, kBlock), i});
    if (e.value()->submit(ops).value() != 8) return 1;
    if (!forbid(SYS_io_uring_enter, EPERM)) return kNoFilter;
    e.value().reset();
    return 0;
  });
  if (child.exit_code != kNoFilter) {
    EXPECT_EQ(child.exit_code, 0);
  }
}

TEST_F(Select, DescriptorsAreClosedOnExec) {
  for (const EngineKind kind : {EngineKind::uring, EngineKind::threads}) {
    auto e = select_engine(file_, 4, kind, nullptr);
    const int fd = e.value()->ready_fd();
    EXPECT_EQ(::fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    e.value().reset();
    EXPECT_LT(::fcntl(fd, F_GETFD), 0);
  }
}

}  // namespace
}  // namespace lmdbio
