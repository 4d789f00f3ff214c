// What every engine does, and the checks that they share.
#include "lmdbio/io/io_engine.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/io/engine_memory.h"
#include "lmdbio/io/engine_pread.h"
#include "lmdbio/io/engine_threads.h"
#include "lmdbio/io/engine_uring.h"
#include "lmdbio/io/file.h"
#include "tests/support/child.h"
#include "tests/support/faulty_engine.h"
#include "tests/support/scan.h"
#include "tests/support/temp_file.h"
#include "tests/support/test_bytes.h"

namespace lmdbio {
namespace {

using testing::AlignedBuffer;
using testing::byte_at;
using testing::pattern;
using testing::scan;
using testing::ScanResult;

constexpr std::size_t kFileBytes = 64 * 4096;

struct Kind {
  const char* name;
  IoEngine::Caps memory;  // depth 0: of a file
  File::Mode mode;
  Result<std::unique_ptr<IoEngine>> (*engine)(const File&);
};

Result<std::unique_ptr<IoEngine>> make_pread(const File& f) { return pread_engine(f); }
template <unsigned depth, unsigned threads = 0>
Result<std::unique_ptr<IoEngine>> make_threads(const File& f) {
  return threads_engine(f, depth, threads);
}

/// Reads several small ranges at once, and counts how it was called.
class TogetherReader final : public RangeReader {
 public:
  explicit TogetherReader(const File& file) : file_(file_reader(file)) {}
  long fill(std::uint64_t offset, MutableBytes to) noexcept override {
    ++alone;
    return file_->fill(offset, to);
  }
  void fill_all(std::span<Range> ranges) noexcept override {
    std::size_t bytes = 0;
    for (Range& r : ranges) {
      bytes += r.to.size();
      r.result = file_->fill(r.offset, r.to);
    }
    EXPECT_LE(ranges.size(), kMostAtOnce);
    EXPECT_LE(bytes, 64u << 10);
    together += static_cast<unsigned>(ranges.size());
    ++calls;
  }
  unsigned at_once() const noexcept override { return kMostAtOnce; }
  unsigned threads() const noexcept override { return 64; }
  static inline std::atomic<unsigned> alone, calls, together;

 private:
  const std::unique_ptr<RangeReader> file_;
};

Result<std::unique_ptr<IoEngine>> make_together(const File& f) {
  return threads_engine(f, 32, 0, std::make_unique<TogetherReader>(f));
}
template <unsigned depth>
Result<std::unique_ptr<IoEngine>> make_uring(const File& f) {
  return uring_engine(f, depth);
}

class AnyEngine : public ::testing::TestWithParam<Kind> {
 protected:
  void make(std::size_t size = kFileBytes) {
    contents_ = pattern(size);
    if (GetParam().memory.depth != 0) {
      engine_ = memory_engine(contents_, GetParam().memory);
      return;
    }
    temp_ = std::make_unique<testing::TempFile>(contents_);
    Result<File> f = File::open(temp_->path(), GetParam().mode);
    ASSERT_TRUE(f);
    file_ = std::make_unique<File>(std::move(f.value()));
    Result<std::unique_ptr<IoEngine>> made = GetParam().engine(*file_);
    if (!made && std::string(GetParam().name).starts_with("uring"))
      GTEST_SKIP() << "no io_uring here: " << made.error().raw();
    ASSERT_TRUE(made);
    engine_ = std::move(made.value());
  }
  std::size_t align() const { return engine_->caps().align; }
  std::size_t block() const { return std::max<std::size_t>(align(), 512); }
  AlignedBuffer buffer(std::size_t size) const {
    return AlignedBuffer(size, std::max<std::size_t>(align(), 64));
  }

  std::vector<std::byte> contents_;
  std::unique_ptr<testing::TempFile> temp_;
  std::unique_ptr<File> file_;
  std::unique_ptr<IoEngine> engine_;
};

TEST_P(AnyEngine, ReadsEveryByte) {
  make();
  if (IsSkipped()) return;
  const auto r = scan(*engine_, kFileBytes, block());
  EXPECT_TRUE(r.status.ok());
  EXPECT_TRUE(r.same);
  EXPECT_EQ(r.lost, 0u);
  EXPECT_EQ(engine_->counters().requests, kFileBytes / block());
  EXPECT_EQ(engine_->counters().bytes, kFileBytes);
  EXPECT_EQ(engine_->counters().short_reads, 0u);
  EXPECT_EQ(engine_->counters().retries, 0u);
}

TEST_P(AnyEngine, ReadFully) {
  make();
  if (IsSkipped()) return;
  const AlignedBuffer b = buffer(8 * block());
  EXPECT_TRUE(read_fully(*engine_, 3 * block(), b.bytes()).ok());
  for (std::size_t i = 0; i < b.bytes().size(); ++i) ASSERT_EQ(b.bytes()[i], byte_at(3 * block() + i)) << i;
  EXPECT_TRUE(read_fully(*engine_, 0, {}).ok());
  EXPECT_EQ(engine_->in_flight(), 0u);
}

TEST_P(AnyEngine, UpToTheEndAndBeyond) {
  make();
  if (IsSkipped()) return;
  const AlignedBuffer b = buffer(2 * block());
  EXPECT_TRUE(read_fully(*engine_, kFileBytes - 2 * block(), b.bytes()).ok());
  EXPECT_EQ(read_fully(*engine_, kFileBytes - block(), b.bytes()).raw(), EIO);
  EXPECT_EQ(read_fully(*engine_, kFileBytes, b.bytes()).raw(), EIO);
  EXPECT_EQ(read_fully(*engine_, kFileBytes + 100 * block(), b.bytes()).raw(), EIO);
  EXPECT_EQ(read_fully(*engine_, std::uint64_t{INT64_MAX} + 1, b.bytes()).raw(), EIO);
  EXPECT_EQ(read_fully(*engine_, std::uint64_t{INT64_MAX} + 1 - block(), b.bytes()).raw(), EIO);
  EXPECT_EQ(read_fully(*engine_, ~std::uint64_t{0} - (block() - 1), b.bytes()).raw(), EIO);
  EXPECT_TRUE(read_fully(*engine_, 0, b.bytes()).ok());
  EXPECT_EQ(engine_->in_flight(), 0u);
}

TEST_P(AnyEngine, EndInsideABlock) {
  make(3 * 4096 + 100);
  if (IsSkipped()) return;
  const AlignedBuffer b = buffer(4096);
  EXPECT_EQ(read_fully(*engine_, 3 * 4096, b.bytes()).raw(), EIO);
  if (align() == 1) {
    EXPECT_TRUE(read_fully(*engine_, 3 * 4096, b.bytes().first(100)).ok());
    EXPECT_EQ(b.bytes()[99], byte_at(3 * 4096 + 99));
    EXPECT_EQ(read_fully(*engine_, 3 * 4096, b.bytes().first(101)).raw(), EIO);
  }
}

TEST_P(AnyEngine, MinimumReachesTheTail) {
  make(3 * 4096 + 100);
  if (IsSkipped()) return;
  const AlignedBuffer b = buffer(2 * 4096);
  const auto read = [&](std::uint64_t offset, std::size_t bytes, std::size_t minimum) {
    const ReadOp op{offset, b.bytes().first(bytes), 9, minimum};
    EXPECT_EQ(engine_->submit({&op, 1}).value(), 1u);
    Completion c{0, Status()};
    EXPECT_EQ(engine_->reap({&c, 1}, 1).value(), 1u);
    EXPECT_EQ(c.tag, 9u);
    for (std::size_t i = 0; i < c.bytes; ++i) EXPECT_EQ(b.bytes()[i], byte_at(offset + i));
    return c;
  };
  for (const std::size_t minimum : {std::size_t{1}, std::size_t{99}, std::size_t{100}}) {
    const Completion c = read(3 * 4096, 4096, minimum);
    EXPECT_TRUE(c.status.ok()) << c.status.raw();
    EXPECT_EQ(c.bytes, 100u);
  }
  EXPECT_EQ(read(2 * 4096, 2 * 4096, 4096 + 100).bytes, 4096u + 100);
  EXPECT_EQ(read(2 * 4096, 4096, 1).bytes, 4096u);
  EXPECT_EQ(read(2 * 4096, 4096, 4096).bytes, 4096u);
  EXPECT_EQ(read(2 * 4096, 4096, 0).bytes, 4096u);
  const Completion more = read(3 * 4096, 4096, 101);
  EXPECT_EQ(more.status.raw(), EIO);
  EXPECT_EQ(more.bytes, 0u);
  EXPECT_EQ(read(2 * 4096, 2 * 4096, 0).status.raw(), EIO);
  EXPECT_EQ(read(4 * 4096, 4096, 1).status.raw(), EIO) << "all of it beyond the end";
}

TEST_P(AnyEngine, EveryReadComesOnceWhateverItsPlaceAndSize) {
  make();
  if (IsSkipped()) return;
  std::mt19937_64 random(5);
  const unsigned depth = engine_->caps().depth;
  const std::size_t room = 8 * block();
  const AlignedBuffer b = buffer(depth * room);
  std::vector<ReadOp> in_flight(depth);
  std::vector<std::uint64_t> free(depth);
  std::iota(free.begin(), free.end(), 0u);
  std::vector<Completion> done(depth);
  unsigned started = 0, ended = 0;
  while (ended < 600) {
    while (!free.empty() && started < 600) {
      const std::uint64_t tag = free.back();
      const std::size_t bytes = (1 + random() % (room / align())) * align();
      const std::uint64_t offset = random() % ((kFileBytes - bytes) / align() + 1) * align();
      in_flight[tag] = {offset, b.bytes().subspan(tag * room, bytes), tag};
      const std::size_t taken = engine_->submit({&in_flight[tag], 1}).value();
      if (taken == 0) break;
      free.pop_back();
      ++started;
    }
    const std::size_t n = engine_->reap(done, random() % 3).value();
    for (const Completion& c : std::span(done).first(n)) {
      ASSERT_TRUE(c.status.ok()) << c.status.raw();
      const ReadOp& op = in_flight[c.tag];
      ASSERT_EQ(c.bytes, op.dst.size());
      ASSERT_EQ(std::memcmp(op.dst.data(), contents_.data() + op.offset, op.dst.size()), 0);
      ASSERT_EQ(std::count(free.begin(), free.end(), c.tag), 0) << "twice";
      free.push_back(c.tag);
      ++ended;
    }
  }
  EXPECT_EQ(engine_->in_flight(), 0u);
}

TEST_P(AnyEngine, ReadyFdIsReadableWhileResultsWait) {
  make();
  if (IsSkipped()) return;
  const unsigned depth = engine_->caps().depth;
  const AlignedBuffer b = buffer(depth * block());
  EXPECT_EQ(engine_->poll_timeout_ms(), -1);
  std::vector<ReadOp> ops;
  for (std::size_t i = 0; i < depth; ++i)
    ops.push_back({i * block(), b.bytes().subspan(i * block(), block()), i});
  pollfd ready = {engine_->ready_fd(), POLLIN, 0};
  for (int round = 0; round < 3; ++round) {
    if (ready.fd >= 0) {
      EXPECT_EQ(::poll(&ready, 1, 0), 0) << "nothing was read yet";
    }
    ASSERT_EQ(engine_->submit(ops).value(), depth);
    std::vector<Completion> done(3);
    for (std::size_t got = 0; got < depth;) {
      if (ready.fd < 0) {
        EXPECT_EQ(engine_->poll_timeout_ms(), 0);
      } else {
        const int timeout = engine_->poll_timeout_ms();
        EXPECT_EQ(timeout, -1);
        ASSERT_EQ(::poll(&ready, 1, timeout < 0 ? 10'000 : timeout), 1);
        EXPECT_EQ(ready.revents, POLLIN);
      }
      const std::size_t n = engine_->reap(done, 0).value();
      EXPECT_GT(n, 0u);
      got += n;
    }
    EXPECT_EQ(engine_->poll_timeout_ms(), -1);
  }
}

TEST_P(AnyEngine, GoesWithReadsInFlight) {
  for (int round = 0; round < 10; ++round) {
    make();
    if (IsSkipped()) return;
    const unsigned depth = engine_->caps().depth;
    AlignedBuffer b = buffer(depth * block());
    std::vector<ReadOp> ops;
    for (std::size_t i = 0; i < depth; ++i)
      ops.push_back({i * block(), b.bytes().subspan(i * block(), block()), i});
    ASSERT_EQ(engine_->submit(ops).value(), depth);
    engine_.reset();  // the buffer goes next
  }
}

TEST_P(AnyEngine, ForgottenInAChild) {
  make();
  if (IsSkipped()) return;
  const AlignedBuffer b = buffer(4 * block());
  const ReadOp op{0, b.bytes(), 1};
  ASSERT_EQ(engine_->submit({&op, 1}).value(), 1u);
  const int fd = engine_->ready_fd();
  const auto child = testing::in_child([&] {
    engine_->forget();
    const bool closed = fd < 0 || ::fcntl(fd, F_GETFD) < 0;
    engine_.reset();
    return closed ? 7 : 8;
  });
  EXPECT_EQ(child.exit_code, 7) << child.err;
  Completion c;
  EXPECT_EQ(engine_->reap({&c, 1}, 1).value(), 1u);
  EXPECT_TRUE(c.status.ok());
  EXPECT_EQ(std::memcmp(b.bytes().data(), contents_.data(), b.bytes().size()), 0);
  const ScanResult r = scan(*engine_, kFileBytes, block());
  EXPECT_TRUE(r.status.ok() && r.same && r.lost == 0);
}

TEST_P(AnyEngine, EmptyFile) {
  make(0);
  if (IsSkipped()) return;
  const AlignedBuffer b = buffer(4096);
  EXPECT_EQ(read_fully(*engine_, 0, b.bytes()).raw(), EIO);
}

TEST_P(AnyEngine, TakesUpToItsDepth) {
  make();
  if (IsSkipped()) return;
  const unsigned depth = engine_->caps().depth;
  const AlignedBuffer b = buffer((depth + 1) * block());
  std::vector<ReadOp> ops;
  for (std::size_t i = 0; i <= depth; ++i)
    ops.push_back({i * block(), b.bytes().subspan(i * block(), block()), 100 + i});
  EXPECT_EQ(engine_->submit({}).value(), 0u);
  EXPECT_EQ(engine_->submit(ops).value(), depth);
  EXPECT_EQ(engine_->in_flight(), depth);
  EXPECT_EQ(engine_->submit(std::span(ops).subspan(depth)).value(), 0u);
  Completion one[1];
  EXPECT_EQ(engine_->reap(one, 1).value(), 1u);
  EXPECT_TRUE(one[0].status.ok());
  EXPECT_EQ(engine_->in_flight(), depth - 1);
  EXPECT_EQ(engine_->submit(std::span(ops).subspan(depth)).value(), 1u);
  std::vector<Completion> rest(depth + 5);
  EXPECT_EQ(engine_->reap(rest, rest.size()).value(), depth);
  EXPECT_EQ(engine_->in_flight(), 0u);
}

TEST_P(AnyEngine, ReapWithNothingInFlight) {
  make();
  if (IsSkipped()) return;
  Completion c[2];
  EXPECT_EQ(engine_->reap(c, 2).value(), 0u);
  EXPECT_EQ(engine_->reap(c, 0).value(), 0u);
  EXPECT_EQ(engine_->reap({}, 0).value(), 0u);
}

TEST_P(AnyEngine, ReapIntoNothing) {
  make();
  if (IsSkipped()) return;
  const AlignedBuffer b = buffer(block());
  const ReadOp op{0, b.bytes(), 7};
  ASSERT_EQ(engine_->submit({&op, 1}).value(), 1u);
  EXPECT_EQ(engine_->reap({}, 5).value(), 0u);
  Completion c;
  EXPECT_EQ(engine_->reap({&c, 1}, 1).value(), 1u);
  EXPECT_EQ(c.tag, 7u);
}

TEST_P(AnyEngine, GoesWithReadsNotReaped) {
  make();
  if (IsSkipped()) return;
  const AlignedBuffer b = buffer(block());
  const ReadOp op{0, b.bytes(), 7};
  ASSERT_EQ(engine_->submit({&op, 1}).value(), 1u);
  engine_.reset();
}

TEST_P(AnyEngine, EmptyAndUnalignedReadsAreOurBugs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  make();
  if (IsSkipped()) return;
  const AlignedBuffer b = buffer(2 * block());
  const auto submit = [&](std::uint64_t offset, MutableBytes dst) {
    const ReadOp op{offset, dst, 0};
    (void)engine_->submit({&op, 1});
  };
  EXPECT_DEATH(submit(0, {}), "lmdbio: bug: read of 0 bytes");
  const ReadOp too_much{0, b.bytes(), 0, 2 * block() + 1};
  EXPECT_DEATH((void)engine_->submit({&too_much, 1}), "lmdbio: bug: .*minimum");
  if (align() == 1) return;
  EXPECT_DEATH(submit(1, b.bytes()), "alignment");
  EXPECT_DEATH(submit(0, b.bytes().first(align() / 2)), "alignment");
  EXPECT_DEATH(submit(0, b.bytes().subspan(align() / 2, align())), "alignment");
}

INSTANTIATE_TEST_SUITE_P(
    Engines, AnyEngine,
    ::testing::Values(
        Kind{"memory", {1, 32, false}, {}, {}}, Kind{"memory_one_deep", {1, 1, false}, {}, {}},
        Kind{"memory_aligned", {512, 100, true}, {}, {}},
        Kind{"pread", {0, 0, false}, File::Mode::buffered, make_pread},
        Kind{"pread_direct_if_possible", {0, 0, false}, File::Mode::direct_if_possible, make_pread},
        Kind{"threads", {0, 0, false}, File::Mode::buffered, make_threads<16>},
        Kind{"threads_one_deep", {0, 0, false}, File::Mode::buffered, make_threads<1>},
        Kind{"threads_fewer_than_depth", {0, 0, false}, File::Mode::buffered, make_threads<16, 3>},
        Kind{"threads_direct_if_possible", {0, 0, false}, File::Mode::direct_if_possible, make_threads<16>},
        Kind{"threads_together", {0, 0, false}, File::Mode::buffered, make_together},
        Kind{"uring", {0, 0, false}, File::Mode::buffered, make_uring<16>},
        Kind{"uring_one_deep", {0, 0, false}, File::Mode::buffered, make_uring<1>},
        Kind{"uring_odd_depth", {0, 0, false}, File::Mode::buffered, make_uring<37>},
        Kind{"uring_direct_if_possible", {0, 0, false}, File::Mode::direct_if_possible, make_uring<16>}),
    [](const auto& i) { return std::string(i.param.name); });

TEST(ThreadsEngine, ReadsSmallRangesTogetherAndLargeOnesAlone) {
  const auto contents = pattern(std::size_t{4} << 20);
  const testing::TempFile t(contents);
  const Result<File> f = File::open(t.path(), File::Mode::buffered);
  ASSERT_TRUE(f);
  constexpr std::size_t kReads = 32;
  for (const std::size_t size : {std::size_t{4096}, std::size_t{100} << 10}) {
    const std::unique_ptr<IoEngine> engine = make_together(f.value()).value();
    TogetherReader::alone = TogetherReader::calls = TogetherReader::together = 0;
    std::vector<std::byte> got(kReads * size);
    std::vector<ReadOp> reads;
    for (std::size_t i = 0; i < kReads; ++i)
      reads.push_back({i * size, std::span(got).subspan(i * size, size), i});
    ASSERT_EQ(engine->submit(reads).value(), kReads);
    std::array<Completion, kReads> results;
    std::size_t n = 0;
    while (n < kReads) n += engine->reap(results, 1).value();
    EXPECT_TRUE(std::equal(got.begin(), got.end(), contents.begin()));
    EXPECT_EQ(TogetherReader::alone + TogetherReader::together, kReads);
    if (size == 4096)
      EXPECT_LT(TogetherReader::alone + TogetherReader::calls, kReads / 2);
    else
      EXPECT_EQ(TogetherReader::alone, kReads);
  }
}

TEST(PreadEngine, ReadsADescriptorThatItCannot) {
  const auto contents = pattern(4096);
  testing::TempFile t(contents);
  UniqueFd fd(::open(t.path(), O_WRONLY | O_CLOEXEC));
  Result<File> f = File::from_fd(fd.get(), File::Take::borrow);
  ASSERT_TRUE(f);
  PreadEngine engine(f.value());
  std::vector<std::byte> b(100);
  EXPECT_EQ(read_fully(engine, 0, b).raw(), EBADF);
}

TEST(PreadEngine, SeesTheFileGrow) {
  testing::TempFile t(pattern(100));
  const Result<File> f = File::open(t.path(), File::Mode::buffered);
  ASSERT_TRUE(f);
  PreadEngine engine(f.value());
  std::vector<std::byte> b(100);
  EXPECT_EQ(read_fully(engine, 50, b).raw(), EIO);
  t.append(pattern(100, 100));
  EXPECT_TRUE(read_fully(engine, 50, b).ok());
  EXPECT_EQ(b, pattern(100, 50));
}

// One answer for each attempt at a read; with none left the read is served.
class ScriptedEngine final : public IoEngine {
 public:
  ScriptedEngine(std::vector<long> script, Caps caps) : IoEngine(caps), script_(std::move(script)) {}
  std::vector<std::pair<std::uint64_t, std::size_t>> asked;
  std::vector<std::size_t> waits;       // min of each wait
  std::size_t room = SIZE_MAX;          // reads that it holds at a time
  std::size_t failing_wait = SIZE_MAX;  // this one is EBADF

 private:
  Result<std::size_t> do_submit(std::span<const RawRead> reads) noexcept override {
    std::size_t taken = 0;
    for (const RawRead& r : reads) {
      if (done_.size() == room) break;
      ++taken;
      asked.emplace_back(r.offset, r.dst.size());
      long res = static_cast<long>(r.dst.size());
      if (next_ < script_.size()) res = script_[next_++];
      for (long i = 0; i < res && i < static_cast<long>(r.dst.size()); ++i)
        r.dst[static_cast<std::size_t>(i)] = byte_at(r.offset + static_cast<std::uint64_t>(i));
      done_.push_back({r.slot, res});
    }
    return taken;
  }
  Result<std::size_t> do_reap(std::span<RawResult> out, std::size_t min) noexcept override {
    waits.push_back(min);
    if (waits.size() - 1 == failing_wait) return Status::from_errno(EBADF);
    if (done_.empty()) return std::size_t{0};
    out[0] = done_.back();
    done_.pop_back();
    return std::size_t{1};
  }
  std::vector<long> script_;
  std::size_t next_ = 0;
  std::vector<RawResult> done_;
};

using Asked = std::vector<std::pair<std::uint64_t, std::size_t>>;

TEST(IoEngine, ShortReadsAreContinued) {
  ScriptedEngine e({100, 1, -EINTR, 899}, {1, 4, false});
  std::vector<std::byte> b(1000);
  EXPECT_TRUE(read_fully(e, 5000, b).ok());
  EXPECT_EQ(b, pattern(1000, 5000));
  EXPECT_EQ(e.asked, (Asked{{5000, 1000}, {5100, 900}, {5101, 899}, {5101, 899}}));
  EXPECT_EQ(e.counters().requests, 4u);
  EXPECT_EQ(e.counters().bytes, 1000u);
  EXPECT_EQ(e.counters().short_reads, 2u);
  EXPECT_EQ(e.counters().retries, 1u);
}

TEST(IoEngine, DirectReadsGoOnAtABlock) {
  const AlignedBuffer b(2048, 512);
  ScriptedEngine at_a_block({512}, {512, 4, true});
  EXPECT_TRUE(read_fully(at_a_block, 0, b.bytes()).ok());
  EXPECT_EQ(at_a_block.asked, (Asked{{0, 2048}, {512, 1536}}));
  ScriptedEngine inside({1, 700, 512, 1, 300}, {512, 4, true});
  EXPECT_TRUE(read_fully(inside, 512, b.bytes()).ok());
  EXPECT_EQ(inside.asked,
            (Asked{{512, 2048}, {512, 2048}, {1024, 1536}, {1536, 1024}, {1536, 1024}, {1536, 1024}}));
  for (std::size_t i = 0; i < 2048; ++i) ASSERT_EQ(b.bytes()[i], byte_at(512 + i)) << i;
}

TEST(IoEngine, ADirectReadEndsWithTheFile) {
  const AlignedBuffer b(2048, 512);
  ScriptedEngine ended({512, 100, 100, 100}, {512, 4, true});
  EXPECT_EQ(read_fully(ended, 0, b.bytes()).raw(), EIO) << "three answers with less than a block";
  EXPECT_EQ(ended.asked.size(), 2u + IoEngine::kCutTries);
}

// Tries after EAGAIN and tries of a cut block are counted apart: a mix of them ends.
TEST(IoEngine, ACutBlockAfterRefusalsEnds) {
  const AlignedBuffer b(2048, 512);
  std::vector<long> script{-EAGAIN, -EAGAIN, -EAGAIN};
  script.insert(script.end(), 100, 100);
  ScriptedEngine cut(script, {512, 4, true});
  EXPECT_EQ(read_fully(cut, 0, b.bytes()).raw(), EIO);
  EXPECT_EQ(cut.asked.size(), 3u + 1u + IoEngine::kCutTries);
}

TEST(IoEngine, EndOfFileAfterAPart) {
  ScriptedEngine e({10, 0}, {1, 4, false});
  std::vector<std::byte> b(100);
  EXPECT_EQ(read_fully(e, 0, b).raw(), EIO);
}

TEST(IoEngine, MoreThanAskedIsAnError) {
  ScriptedEngine e({101}, {1, 4, false});
  std::vector<std::byte> b(100);
  EXPECT_EQ(read_fully(e, 0, b).raw(), EIO);
}

TEST(IoEngine, ErrorsAreThoseOfTheKernel) {
  for (const int error : {EIO, ENOMEM, EINVAL, ESTALE, ENODEV, EOPNOTSUPP}) {
    ScriptedEngine e({10, -error}, {1, 4, false});
    std::vector<std::byte> b(100);
    EXPECT_EQ(read_fully(e, 0, b).raw(), error);
    EXPECT_TRUE(read_fully(e, 0, b).ok()) << "an error is not remembered";
  }
}

TEST(IoEngine, InterruptedWithoutEnd) {
  ScriptedEngine e(std::vector<long>(1000, -EINTR), {1, 4, false});
  std::vector<std::byte> b(100);
  EXPECT_TRUE(read_fully(e, 0, b).ok());
  EXPECT_EQ(e.counters().retries, 1000u);
}

TEST(IoEngine, AgainIsTriedABoundedNumberOfTimes) {
  std::vector<std::byte> b(100);
  ScriptedEngine enough(std::vector<long>(IoEngine::kAgainTries, -EAGAIN), {1, 4, false});
  EXPECT_TRUE(read_fully(enough, 0, b).ok());
  ScriptedEngine too_many(std::vector<long>(IoEngine::kAgainTries + 1, -EAGAIN), {1, 4, false});
  EXPECT_EQ(read_fully(too_many, 0, b).raw(), EAGAIN);
  // Progress starts the count anew.
  std::vector<long> halves(IoEngine::kAgainTries, -EAGAIN);
  halves.push_back(10);
  halves.insert(halves.end(), IoEngine::kAgainTries, -EAGAIN);
  ScriptedEngine progress(halves, {1, 4, false});
  EXPECT_TRUE(read_fully(progress, 0, b).ok());
}

TEST(IoEngine, PollDoesNotWaitForTheRestOfARead) {
  ScriptedEngine e({10}, {1, 4, false});
  std::vector<std::byte> b(100);
  const ReadOp op{0, b, 1};
  ASSERT_EQ(e.submit({&op, 1}).value(), 1u);
  Completion c;
  EXPECT_EQ(e.reap({&c, 1}, 0).value(), 0u);
  EXPECT_EQ(e.reap({&c, 1}, 0).value(), 1u);
  EXPECT_TRUE(c.status.ok());
}

TEST(IoEngine, AMinimumEndsAtTheFirstShortAnswerThatReachesIt) {
  const AlignedBuffer b(2048, 512);
  const auto read = [&](ScriptedEngine& e, std::size_t minimum) {
    const ReadOp op{0, b.bytes(), 0, minimum};
    EXPECT_EQ(e.submit({&op, 1}).value(), 1u);
    Completion c{0, Status()};
    EXPECT_EQ(e.reap({&c, 1}, 1).value(), 1u);
    return c;
  };
  ScriptedEngine once({1024}, {512, 4, true});
  EXPECT_EQ(read(once, 1024).bytes, 1024u);
  EXPECT_EQ(once.asked.size(), 1u);
  ScriptedEngine twice({512, 700}, {512, 4, true});
  EXPECT_EQ(read(twice, 1025).bytes, 1212u);
  EXPECT_EQ(twice.asked, (Asked{{0, 2048}, {512, 1536}}));
  ScriptedEngine ended({512, 0}, {512, 4, true});
  EXPECT_EQ(read(ended, 513).status.raw(), EIO);
  ScriptedEngine inside({512, 100, 100, 100}, {512, 4, true});
  EXPECT_EQ(read(inside, 613).status.raw(), EIO);
}

TEST(IoEngine, PollDoesNotSleepForARefusedRead) {
  ScriptedEngine e(std::vector<long>(IoEngine::kAgainTries, -EAGAIN), {1, 4, false});
  std::vector<std::byte> b(100);
  const ReadOp op{0, b, 1};
  ASSERT_EQ(e.submit({&op, 1}).value(), 1u);
  Completion c;
  unsigned polls = 0;
  while (e.reap({&c, 1}, 0).value() == 0) ++polls;
  EXPECT_TRUE(c.status.ok());
  EXPECT_GT(polls, 2 * IoEngine::kAgainTries) << "most of them came too early and did nothing";
  EXPECT_EQ(e.asked.size(), IoEngine::kAgainTries + 1);
}

TEST(IoEngine, PollHandsTheRestOfAShortReadOn) {
  ScriptedEngine e({10}, {1, 4, false});
  std::vector<std::byte> b(100);
  const ReadOp op{0, b, 1};
  ASSERT_EQ(e.submit({&op, 1}).value(), 1u);
  Completion c;
  EXPECT_EQ(e.reap({&c, 1}, 0).value(), 0u);
  EXPECT_EQ(e.asked, (Asked{{0, 100}, {10, 90}})) << "else poll(2) would wait for ever";
}

// Three reads of one byte, submitted.
std::vector<std::byte> submit_three(IoEngine& e) {
  std::vector<std::byte> b(3);
  std::vector<ReadOp> ops;
  for (std::size_t i = 0; i < 3; ++i) ops.push_back({i, std::span(b).subspan(i, 1), i});
  EXPECT_EQ(e.submit(ops).value(), 3u);
  return b;
}

TEST(IoEngine, WaitsForWhatIsStillMissing) {
  ScriptedEngine e({}, {1, 4, false});
  const auto b = submit_three(e);
  Completion c[4];
  EXPECT_EQ(e.reap(c, 4).value(), 3u);
  EXPECT_EQ(e.waits, (std::vector<std::size_t>{3, 2, 1}));
}

TEST(IoEngine, FailedWaitLosesNoCompletion) {
  ScriptedEngine e({}, {1, 4, false});
  e.failing_wait = 1;
  const auto b = submit_three(e);
  Completion c[4];
  EXPECT_EQ(e.reap(c, 4).value(), 1u);
  EXPECT_EQ(e.reap(c, 4).value(), 2u);
  e.failing_wait = e.waits.size();
  const auto again = submit_three(e);
  EXPECT_EQ(e.reap(c, 4).error().raw(), EBADF);
  EXPECT_EQ(e.in_flight(), 3u);
  EXPECT_EQ(e.reap(c, 4).value(), 3u);
}

TEST(IoEngine, EngineWithLessRoomThanItsDepth) {
  ScriptedEngine e({}, {1, 100, false});
  e.room = 1;
  const ScanResult r = scan(e, 100, 1);
  EXPECT_TRUE(r.status.ok());
  EXPECT_TRUE(r.same);
  EXPECT_EQ(r.lost, 0u);
  EXPECT_EQ(e.counters().retries, 0u);
  EXPECT_EQ(e.counters().requests, 100u);
}

TEST(IoEngine, AnySizeOfOutput) {
  for (const std::size_t room : {std::size_t{1}, std::size_t{3}, std::size_t{100}}) {
    const auto contents = pattern(1000);
    MemoryEngine e(contents, {1, 70, false});
    std::vector<std::byte> b(70);
    std::vector<ReadOp> ops;
    for (std::size_t i = 0; i < 70; ++i) ops.push_back({i, std::span(b).subspan(i, 1), i});
    ASSERT_EQ(e.submit(ops).value(), 70u);
    std::vector<Completion> out(room);
    std::vector<bool> seen(70);
    for (std::size_t got = 0; got < 70;) {
      const std::size_t n = e.reap(out, room).value();
      ASSERT_EQ(n, std::min(room, 70 - got));
      for (std::size_t i = 0; i < n; ++i) {
        EXPECT_FALSE(seen[out[i].tag]);
        seen[out[i].tag] = true;
      }
      got += n;
    }
    EXPECT_EQ(b, pattern(70));
  }
}

}  // namespace
}  // namespace lmdbio
