// Requests of programs to the server of their node, and their answers.  One side may be silent or dead, or
// may overwrite the segment.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "lmdbio/base/futex.h"
#include "lmdbio/node/service.h"
#include "tests/support/node_processes.h"
#include "tests/support/rng.h"

namespace lmdbio::node {
namespace {

constexpr ServedState kState{{1, 2}, 3, 4096, 5};
constexpr std::uint32_t kFile = 7;

std::byte byte_at(std::uint64_t offset) { return static_cast<std::byte>(offset * 131 >> 3); }

/// A server in a thread, which serves one file of `bytes` bytes.
class Served {
 public:
  explicit Served(std::uint64_t bytes) : host_(ServiceHost::make().value()) {
    host_->set_nodes(2);
    thread_ = std::thread([this, bytes] {
      while (!ends_) {
        while (const std::optional<ServiceHost::Request> r = host_->next()) answer(*r, bytes);
        host_->free_slots_of_dead();
        host_->wait(1'000'000);
      }
    });
  }
  ~Served() {
    ends_ = true;
    host_->stop_waiting();
    thread_.join();
  }
  ServiceHost& host() { return *host_; }
  std::atomic<std::uint64_t> asked{0};
  std::atomic<std::int64_t> more_open{0}, more_read{0};  ///< added to results

 private:
  void answer(const ServiceHost::Request& r, std::uint64_t bytes) {
    ++asked;
    if (r.kind == ServiceHost::Kind::open) {
      const std::string path = host_->path(r);
      const bool known = path == "/a/path" && r.state == kState;
      return host_->finish(r, known ? std::int64_t{kFile} + more_open : -ENOTSUP,
                           std::as_bytes(std::span(path)));
    }
    if (r.file != kFile || !(r.state == kState) || r.offset >= bytes) return host_->finish(r, -EIO, {});
    const std::size_t n = std::min<std::uint64_t>(r.bytes, bytes - r.offset);
    std::vector<std::byte> read(n);
    for (std::size_t i = 0; i < n; ++i) read[i] = byte_at(r.offset + i);
    host_->finish(r, static_cast<std::int64_t>(n) + more_read, read);
  }

  std::unique_ptr<ServiceHost> host_;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

Result<std::size_t> read_one(Service& service, std::uint64_t offset, MutableBytes to,
                             std::uint32_t file = kFile) {
  Service::Range range{offset, to};
  service.read(file, kState, {&range, 1});
  return range.result;
}

/// Reads, and returns whether the bytes are right.
bool reads(Service& service, std::uint64_t offset, std::size_t bytes) {
  std::vector<std::byte> got(bytes);
  const Result<std::size_t> n = read_one(service, offset, got);
  if (!n || n.value() != bytes) return false;
  for (std::size_t i = 0; i < bytes; ++i)
    if (got[i] != byte_at(offset + i)) return false;
  return true;
}

TEST(NodeService, NoServer) { EXPECT_EQ(Service::get(), nullptr); }

TEST(NodeService, AsksNothingOfTheServerOfASingleNode) {
  Served served(1 << 20);
  served.host().set_nodes(1);
  EXPECT_EQ(Service::get(), nullptr);
}

TEST(NodeService, OpensAndReads) {
  Served served((std::uint64_t{1} << 32) + 100);
  const std::shared_ptr<Service> service = Service::get();
  ASSERT_NE(service, nullptr);
  EXPECT_EQ(service, Service::get());
  EXPECT_EQ(service->open("/a/path", kState).value().file, kFile);
  EXPECT_FALSE(service->open("/a/path", kState).value().stores);
  EXPECT_EQ(service->open("/another", kState).error().raw(), ENOTSUP);
  EXPECT_EQ(service->open("/a/path", {{1, 3}, 3, 4096, 5}).error().raw(), ENOTSUP);
  EXPECT_TRUE(reads(*service, 0, 1));
  EXPECT_TRUE(reads(*service, 12345, kServiceBytes));
  EXPECT_TRUE(reads(*service, std::uint64_t{1} << 32, 100));
  std::vector<std::byte> more(200);
  EXPECT_EQ(read_one(*service, std::uint64_t{1} << 32, more).value(), 100u) << "the end of the file";
  EXPECT_EQ(read_one(*service, 0, more, kFile + 1).error().raw(), EIO);
}

// A server may leave it to programs to decompress, and tells whether it stores a file.
TEST(NodeService, ResultsThatSayMore) {
  Served served(1 << 20);
  served.more_read = kPackedResult;
  served.more_open = kStoresResult;
  const std::shared_ptr<Service> service = Service::get();
  ASSERT_NE(service, nullptr);
  const Service::Opened opened = service->open("/a/path", kState).value();
  EXPECT_EQ(opened.file, kFile);
  EXPECT_TRUE(opened.stores);
  std::vector<std::byte> got(300);
  std::vector<Service::Range> ranges = {{0, std::span(got).first(100)},
                                        {1 << 20, std::span(got).subspan(100)}};
  service->read(kFile, kState, ranges);
  EXPECT_TRUE(ranges[0].packed);
  EXPECT_EQ(ranges[0].result.value(), 100u);
  EXPECT_FALSE(ranges[1].packed) << "an error";
  served.more_read = std::int64_t{1} << 34;
  EXPECT_EQ(read_one(*service, 0, got).error().raw(), EIO) << "a number of bytes that is too large";
}

TEST(NodeService, ReadsRangesAtOnce) {
  const std::uint64_t bytes = std::uint64_t{1} << 20;
  Served served(bytes);
  const std::shared_ptr<Service> service = Service::get();
  ASSERT_NE(service, nullptr);
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, Service::kAtOnce, 3 * Service::kAtOnce + 5}) {
    std::vector<std::byte> got(n * 100);
    std::vector<Service::Range> ranges;
    for (std::size_t i = 0; i < n; ++i)  // every seventh lies behind the end
      ranges.push_back({i % 7 == 6 ? bytes + i : i * 1000, std::span(got).subspan(i * 100, 100)});
    served.asked = 0;
    service->read(kFile, kState, ranges);
    EXPECT_EQ(served.asked, n);
    for (std::size_t i = 0; i < n; ++i) {
      if (i % 7 == 6) {
        EXPECT_EQ(ranges[i].result.error().raw(), EIO);
        continue;
      }
      EXPECT_EQ(ranges[i].result.value(), 100u);
      for (std::size_t b = 0; b < 100; ++b) EXPECT_EQ(ranges[i].to[b], byte_at(ranges[i].offset + b));
    }
  }
}

// Threads that together want more slots than there are do not wait for each other for ever.
TEST(NodeService, ManyThreadsThatReadRangesAtOnce) {
  Served served(std::uint64_t{1} << 30);
  const std::shared_ptr<Service> service = Service::get();
  ASSERT_NE(service, nullptr);
  std::atomic<unsigned> good{0};
  std::vector<std::thread> threads;
  constexpr unsigned kThreads = kServiceSlots / Service::kAtOnce * 4, kRanges = 100;
  for (unsigned t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      test::Rng rng(t);
      std::vector<std::byte> got(kRanges * 64);
      std::vector<Service::Range> ranges;
      for (unsigned i = 0; i < kRanges; ++i)
        ranges.push_back({rng.below(1 << 29), std::span(got).subspan(i * 64, 64)});
      service->read(kFile, kState, ranges);
      for (const Service::Range& r : ranges)
        if (r.result && r.result.value() == 64 && r.to[5] == byte_at(r.offset + 5)) ++good;
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(good, kThreads * kRanges);
}

TEST(NodeService, ManyThreads) {
  Served served(std::uint64_t{1} << 30);
  const std::shared_ptr<Service> service = Service::get();
  ASSERT_NE(service, nullptr);
  std::atomic<unsigned> good{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kServiceSlots + 16; ++t)
    threads.emplace_back([&, t] {
      test::Rng rng(t);
      for (unsigned i = 0; i < 20; ++i)
        if (reads(*service, rng.below(1 << 29), 1 + rng.below(3000))) ++good;
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(good, (kServiceSlots + 16) * 20);
}

TEST(NodeService, ASecondServerIsRefused) {
  Served served(1);
  EXPECT_EQ(ServiceHost::make().error().raw(), EEXIST);
}

TEST(NodeService, TheSegmentGoesWithTheServer) {
  {
    Served served(1 << 20);
    ASSERT_NE(Service::get(), nullptr);
  }
  EXPECT_EQ(Service::get(), nullptr);
  Served again(1 << 20);
  const std::shared_ptr<Service> service = Service::get();
  ASSERT_NE(service, nullptr);
  EXPECT_TRUE(reads(*service, 0, 100));
}

TEST(NodeService, TheSegmentOfAKilledServerIsReplaced) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const auto host = ServiceHost::make();
    if (!host) ::_exit(1);
    host.value()->set_nodes(2);
    (void)!::write(ready[1], "x", 1);
    ::pause();
  }
  char c;
  ASSERT_EQ(::read(ready[0], &c, 1), 1);
  const std::shared_ptr<Service> old = Service::get();
  ASSERT_NE(old, nullptr);
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  Served served(1 << 20);
  const std::shared_ptr<Service> service = Service::get();
  ASSERT_NE(service, nullptr);
  EXPECT_NE(service, old);
  EXPECT_TRUE(reads(*service, 0, 100));
}

TEST(NodeService, IsListed) {
  EXPECT_FALSE(listed_service());
  EXPECT_FALSE(remove_dead_service());
  {
    const std::unique_ptr<ServiceHost> host = ServiceHost::make().value();
    host->set_nodes(3);
    host->show_counts(
        {.read = 1, .to_programs = 2, .to_nodes = 3, .from_nodes = 4, .kept = 5, .alone = 6, .cached = 7});
    const std::shared_ptr<Service> program = Service::get();
    const std::optional<ListedService> listed = listed_service();
    ASSERT_TRUE(listed);
    EXPECT_FALSE(listed->dead);
    EXPECT_EQ(listed->nodes, 3u);
    EXPECT_EQ(listed->programs, 1u);
    EXPECT_EQ(listed->counts.read, 1u);
    EXPECT_EQ(listed->counts.from_nodes, 4u);
    EXPECT_EQ(listed->counts.alone, 6u);
    EXPECT_EQ(listed->counts.cached, 7u);
    EXPECT_FALSE(remove_dead_service());
  }
  const pid_t pid = ::fork();
  if (pid == 0) {
    const auto host = ServiceHost::make();
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(pid, nullptr, 0);
  ASSERT_TRUE(listed_service());
  EXPECT_TRUE(listed_service()->dead);
  EXPECT_TRUE(remove_dead_service());
  EXPECT_FALSE(listed_service());
}

TEST(NodeService, ASilentServerIsAskedOnceInAWhile) {
  const std::unique_ptr<ServiceHost> host = ServiceHost::make().value();
  host->set_nodes(2);
  const std::shared_ptr<Service> service = Service::get();
  ASSERT_NE(service, nullptr);
  std::byte b[1];
  EXPECT_EQ(read_one(*service, 0, b).error().raw(), ETIMEDOUT);
  for (unsigned i = 0; i < 10; ++i) EXPECT_EQ(read_one(*service, 0, b).error().raw(), ETIMEDOUT);
  EXPECT_FALSE(host->next()) << "the first request was given up, and the others were not made";
}

TEST(NodeService, ARequestThatWasGivenUpFreesItsSlotInTheEnd) {
  const std::unique_ptr<ServiceHost> host = ServiceHost::make().value();
  host->set_nodes(2);
  const std::shared_ptr<Service> service = Service::get();
  ASSERT_NE(service, nullptr);
  std::thread program([&] {
    std::byte b[1];
    EXPECT_EQ(read_one(*service, 0, b).error().raw(), ETIMEDOUT);
  });
  std::optional<ServiceHost::Request> request;
  ASSERT_TRUE(comes_true([&] { return (request = host->next()).has_value(); }));
  program.join();
  // All other slots can be taken meanwhile, and this one afterwards.
  host->finish(*request, 1, std::vector<std::byte>(1));
  SlotWord word{SlotValue(8).with(SlotValue::State::serving).bits()};
  EXPECT_EQ(give_up(word, SlotValue(8)), GaveUp::yes);
  EXPECT_FALSE(finish(word, SlotValue(8)));
  EXPECT_EQ(SlotValue(word).state(), SlotValue::State::free);
}

TEST(NodeService, AnAnswerThatComesAtTheLastMomentIsTaken) {
  SlotWord word{SlotValue(8).with(SlotValue::State::serving).bits()};
  EXPECT_TRUE(finish(word, SlotValue(8)));
  EXPECT_EQ(give_up(word, SlotValue(8)), GaveUp::is_done);
}

TEST(NodeService, TheSlotsOfDeadProgramsAreFreed) {
  const std::unique_ptr<ServiceHost> host = ServiceHost::make().value();
  host->set_nodes(2);
  for (unsigned i = 0; i < kServiceSlots; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      Service::forget_all();
      const std::shared_ptr<Service> service = Service::get();
      std::thread([&] {
        std::byte b[1];
        if (service != nullptr) (void)read_one(*service, i, b);
      }).detach();
      ::pause();
    }
    ASSERT_TRUE(comes_true([&] { return host->waiting() == i + 1; }));
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  host->free_slots_of_dead();
  EXPECT_EQ(host->waiting(), kServiceSlots) << "they may have been taken a moment ago";
  host->free_slots_of_dead();
  EXPECT_EQ(host->waiting(), 0u);
}

// A process that was stopped for long wakes up, and writes to a slot that has another owner now.
TEST(NodeService, ARequestThatAnotherProcessOverwritesIsNotAnswered) {
  const std::unique_ptr<ServiceHost> host = ServiceHost::make().value();
  host->set_nodes(2);
  const std::shared_ptr<Service> service = Service::get();
  ASSERT_NE(service, nullptr);
  std::thread program([&] {
    std::byte b[8];
    EXPECT_EQ(read_one(*service, 0, b).error().raw(), EIO);
    EXPECT_EQ(service->open("/a/path", kState).error().raw(), EIO);
  });
  const auto next = [&] {
    std::optional<ServiceHost::Request> request;
    EXPECT_TRUE(comes_true([&] { return (request = host->next()).has_value(); }));
    return *request;
  };
  ServiceHost::Request read = next();
  read.offset = 4096;
  const std::vector<std::byte> eight(8);
  host->finish(read, 8, eight);
  const std::string other = "/b/path";
  host->finish(next(), kFile, std::as_bytes(std::span(other)));
  program.join();
}

TEST(NodeService, AForkedChildAsksNothing) {
  Served served(1 << 20);
  const std::shared_ptr<Service> service = Service::get();
  ASSERT_NE(service, nullptr);
  Service::lock_registry();
  const pid_t pid = ::fork();
  if (pid == 0) {
    Service::forget_all();
    Service::unlock_registry();
    std::byte b[1];
    const bool refused = read_one(*service, 0, b).error().raw() == ECANCELED;
    const std::shared_ptr<Service> own = Service::get();
    ::_exit(refused && own != nullptr && own != service && reads(*own, 5, 1000) ? 0 : 1);
  }
  Service::unlock_registry();
  EXPECT_TRUE(service->answers());
  int status = -1;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(reads(*service, 0, 100));
}

}  // namespace
}  // namespace lmdbio::node
