// Every single failure of a read, found by counting: fail the k-th operation for k = 1, 2, ... until none
// fires.
#include <gtest/gtest.h>
#include <poll.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/io/engine_memory.h"
#include "lmdbio/io/engine_pread.h"
#include "lmdbio/io/engine_threads.h"
#include "lmdbio/io/engine_uring.h"
#include "lmdbio/io/file.h"
#include "tests/support/faulty_engine.h"
#include "tests/support/scan.h"
#include "tests/support/temp_file.h"
#include "tests/support/test_bytes.h"

namespace lmdbio {
namespace {

using testing::AlignedBuffer;
using testing::FaultPlan;
using testing::FaultyEngine;
using testing::pattern;
using testing::scan;
using testing::ScanResult;

constexpr std::size_t kAlign = 4096;  // suits every engine here
constexpr std::size_t kBytes = 16 * kAlign;

struct Case {
  const char* name;
  FaultPlan (*plan)(unsigned k);
  int error;  // what the caller is to see; 0: nothing
};

const Case kCases[] = {
    {"eio", [](unsigned k) { return testing::fail_nth(k, EIO); }, EIO},
    {"enomem", [](unsigned k) { return testing::fail_nth(k, ENOMEM); }, ENOMEM},
    {"estale", [](unsigned k) { return testing::fail_nth(k, ESTALE); }, ESTALE},
    {"zero", [](unsigned k) { return testing::zero_nth(k); }, EIO},
    {"short", [](unsigned k) { return testing::short_nth(k); }, 0},
    {"eintr", [](unsigned k) { return testing::interrupt_nth(k); }, 0},
    {"eagain", [](unsigned k) { return testing::again_nth(k); }, 0},
    {"eagain_often", [](unsigned k) { return testing::again_nth(k, 3); }, 0},
    {"submit_eintr", [](unsigned k) { return testing::refuse_nth(k, EINTR); }, 0},
    {"submit_eagain", [](unsigned k) { return testing::refuse_nth(k, EAGAIN); }, 0},
    {"submit_enomem", [](unsigned k) { return testing::refuse_nth(k, ENOMEM); }, ENOMEM},
    {"submit_full", [](unsigned k) { return testing::full_nth(k); }, 0},
    {"reap_eintr", [](unsigned k) { return testing::reap_nth(k, EINTR); }, 0},
};

class IoFault : public ::testing::TestWithParam<std::tuple<Case, std::string>> {
 protected:
  IoFault() : contents_(pattern(kBytes)), file_(contents_) {
    Result<File> f = File::open(file_.path(), engine_name() == "direct" || engine_name() == "uring"
                                                  ? File::Mode::direct_if_possible
                                                  : File::Mode::buffered);
    EXPECT_TRUE(f);
    if (f) opened_ = std::make_unique<File>(std::move(f.value()));
  }
  const Case& fault() const { return std::get<0>(GetParam()); }
  const std::string& engine_name() const { return std::get<1>(GetParam()); }
  std::unique_ptr<IoEngine> engine() const {
    if (engine_name() == "memory") return memory_engine(contents_, {512, 8, true});
    if (engine_name() == "threads") return std::move(threads_engine(*opened_, 8).value());
    if (engine_name() == "uring") {
      auto made = uring_engine(*opened_, 8);
      return made ? std::move(made.value()) : nullptr;
    }
    return pread_engine(*opened_);
  }

  // Runs `job` with the k-th operation failing, for each k; it returns the status that it was shown.
  void each(const std::function<Status(FaultyEngine&)>& job, bool shuffled) {
    if (engine() == nullptr) GTEST_SKIP() << "no io_uring here";
    unsigned k = 1;
    for (;; ++k) {
      ASSERT_LT(k, 10'000u) << "faults without end";
      std::unique_ptr<FaultyEngine> io = shuffled
                                             ? std::make_unique<FaultyEngine>(engine(), fault().plan(k), k)
                                             : std::make_unique<FaultyEngine>(engine(), fault().plan(k));
      const Status first = job(*io);
      if (!io->fired()) {
        EXPECT_TRUE(first.ok());
        break;
      }
      EXPECT_EQ(first.raw(), fault().error) << io->story();
      EXPECT_EQ(io->in_flight(), 0u) << io->story();
      EXPECT_TRUE(job(*io).ok()) << "it must recover\n" << io->story();
    }
    EXPECT_GT(k, 1u) << "no operation at all was hit";
  }

  const std::vector<std::byte> contents_;
  testing::TempFile file_;
  std::unique_ptr<File> opened_;
};

TEST_P(IoFault, ReadFully) {
  const AlignedBuffer b(8 * kAlign, kAlign);
  each(
      [&](FaultyEngine& io) {
        const Status s = read_fully(io, kAlign, b.bytes());
        EXPECT_TRUE(!s.ok() ||
                    std::memcmp(b.bytes().data(), contents_.data() + kAlign, b.bytes().size()) == 0)
            << io.story();
        return s;
      },
      false);
}

TEST_P(IoFault, Scan) {
  for (const bool shuffled : {false, true})
    each(
        [&](FaultyEngine& io) {
          const ScanResult r = scan(io, kBytes, 2 * kAlign);
          EXPECT_EQ(r.lost, 0u) << io.story();
          EXPECT_TRUE(r.same) << io.story();
          EXPECT_LE(r.failed, 1u) << io.story();
          return r.status;
        },
        shuffled);
}

INSTANTIATE_TEST_SUITE_P(
    All, IoFault,
    ::testing::Combine(::testing::ValuesIn(kCases),
                       ::testing::Values("memory", "pread", "direct", "threads", "uring")),
    [](const auto& i) { return std::get<1>(i.param) + "_" + std::get<0>(i.param).name; });

// The same by a thread that polls: it never waits within reap, and is woken for all that comes.
TEST_P(IoFault, Polled) {
  const AlignedBuffer b(kBytes, kAlign);
  each(
      [&](FaultyEngine& io) {
        Status first;
        std::vector<Completion> done(3);
        std::size_t next = 0, ended = 0;
        constexpr std::size_t kReads = kBytes / (2 * kAlign);
        while (ended < kReads) {
          while (next < kReads) {
            const ReadOp op{next * 2 * kAlign, b.bytes().subspan(next * 2 * kAlign, 2 * kAlign), next};
            if (io.submit({&op, 1}).value() == 0) break;
            ++next;
          }
          const Result<std::size_t> n = io.reap(done, 0);
          if (!n) return n.error();
          for (const Completion& c : std::span(done).first(n.value())) {
            if (!c.status.ok()) first = c.status;
            EXPECT_TRUE(!c.status.ok() ||
                        std::memcmp(b.bytes().data() + c.tag * 2 * kAlign,
                                    contents_.data() + c.tag * 2 * kAlign, 2 * kAlign) == 0);
          }
          ended += n.value();
          if (n.value() == done.size() || io.in_flight() == 0) continue;
          const int timeout = io.poll_timeout_ms();
          pollfd ready = {io.ready_fd(), POLLIN, 0};
          const int woken = ::poll(&ready, 1, timeout < 0 ? 10'000 : timeout);
          EXPECT_TRUE(timeout >= 0 || woken == 1) << "nothing came\n" << io.story();
        }
        return first;
      },
      false);
}

// A wrong bit is not an error that this layer can see; the double shows it to the layers above.
TEST(IoFault, EachFlippedBitReachesTheCaller) {
  const auto contents = pattern(kBytes);
  unsigned k = 1;
  for (;; ++k) {
    FaultyEngine io(memory_engine(contents), testing::flip_nth(k));
    const ScanResult r = scan(io, kBytes, 2 * kAlign);
    EXPECT_TRUE(r.status.ok());
    if (!io.fired()) {
      EXPECT_TRUE(r.same);
      break;
    }
    EXPECT_FALSE(r.same) << io.story();
    EXPECT_TRUE(scan(io, kBytes, 2 * kAlign).same) << io.story();
  }
  EXPECT_EQ(k, kBytes / (2 * kAlign) + 1);
}

}  // namespace
}  // namespace lmdbio
