// How many requests a home has in flight: as many as a fast file system takes, and few if they wait in
// queues.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "lmdbio/serve/read_window.h"

namespace lmdbio::serve {
namespace {

constexpr std::int64_t kMs = 1'000'000;

/// A file system that serves one request after the other.  Some clients read with windows.
class SlowFiles {
 public:
  SlowFiles(unsigned clients, std::int64_t latency_ns, std::int64_t service_ns)
      : windows_(clients), in_flight_(clients), latency_ns_(latency_ns), service_ns_(service_ns) {}
  /// Lets all clients read until so many requests have ended.  Returns the longest time that one took.
  std::int64_t run(unsigned requests) {
    std::int64_t longest = 0;
    for (unsigned ended = 0; ended < requests; ++ended) {
      for (unsigned c = 0; c < windows_.size(); ++c)
        while (in_flight_[c] < windows_[c].size()) {
          windows_[c].started(1, now_ns_);
          ++in_flight_[c];
          free_ns_ = std::max(free_ns_, now_ns_) + service_ns_;
          queue_.push_back({c, now_ns_, free_ns_ + latency_ns_});
        }
      const Request first = queue_.front();
      queue_.pop_front();
      now_ns_ = first.ends;
      longest = std::max(longest, now_ns_ - first.began);
      windows_[first.client].ended(1, now_ns_);
      --in_flight_[first.client];
    }
    return longest;
  }
  unsigned size(unsigned client) const { return windows_[client].size(); }
  std::int64_t now_ns() const { return now_ns_; }

 private:
  struct Request {
    unsigned client;
    std::int64_t began, ends;
  };
  std::vector<ReadWindow> windows_;
  std::vector<unsigned> in_flight_;
  const std::int64_t latency_ns_, service_ns_;
  std::int64_t now_ns_ = 0, free_ns_ = 0;
  std::deque<Request> queue_;
};

TEST(ServeReadWindow, BeginsWithOneAndGrows) {
  ReadWindow window;
  for (unsigned round = 0; round < 100; ++round) {
    EXPECT_EQ(window.size(), std::min(1 + round, ReadWindow::kMost));
    window.started(window.size(), round * kMs);
    window.ended(window.size(), round * kMs + 1);
  }
}

TEST(ServeReadWindow, DoesNotGrowWhenItIsNotUsed) {
  ReadWindow window;
  window.started(1, 0);
  window.ended(1, kMs);
  ASSERT_EQ(window.size(), 2u);
  for (unsigned i = 0; i < 10; ++i) {
    window.started(1, i * kMs);
    window.ended(1, i * kMs + kMs);
  }
  EXPECT_EQ(window.size(), 2u);
}

TEST(ServeReadWindow, OneClientFillsAFastFileSystem) {
  SlowFiles files(1, 10 * kMs, kMs / 100);
  (void)files.run(3000);
  EXPECT_EQ(files.size(0), ReadWindow::kMost);
}

// Latency without a queue is no reason for a small window.
TEST(ServeReadWindow, AnObjectStoreIsNotTakenForAQueue) {
  SlowFiles files(1, 500 * kMs, kMs / 100);
  (void)files.run(3000);
  EXPECT_EQ(files.size(0), ReadWindow::kMost);
}

// 100 clients at 400 requests a second: each request waits for 0.25 s, even if each client has only one.
TEST(ServeReadWindow, ManyClientsDoNotFillTheQueue) {
  SlowFiles files(100, kMs, 5 * kMs / 2);
  const std::int64_t longest = files.run(5000);
  EXPECT_LT(longest, 650 * kMs) << "servers would not wait for the homes";
  EXPECT_LT(files.now_ns(), 5100 * 5 * kMs / 2) << "the file system was idle";
}

TEST(ServeReadWindow, GrowsAgainWhenTheQueueIsGone) {
  ReadWindow window;
  for (unsigned i = 0; i < 6; ++i) {
    window.started(window.size(), i * 10 * kMs);
    window.ended(window.size(), i * 10 * kMs + kMs);
  }
  const unsigned before = window.size();
  ASSERT_GT(before, 4u);
  window.started(before, 1000 * kMs);
  window.ended(before, 2000 * kMs);
  EXPECT_EQ(window.size(), before / 2) << "halved once, although all have waited";
  window.started(window.size(), 3000 * kMs);
  window.ended(window.size(), 3001 * kMs);
  EXPECT_GT(window.size(), before / 2);
}

}  // namespace
}  // namespace lmdbio::serve
