#include "bench/scale/simulation/run_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace lmdbio::bench {
namespace {

struct Work {
  double from, seconds, ends;
};

void expect(RunQueue& queue, const std::vector<Work>& table) {
  for (const Work& w : table)
    EXPECT_DOUBLE_EQ(queue.run(w.from, w.seconds), w.ends) << w.from << ", " << w.seconds;
}

TEST(RunQueue, OneCoreWorksForOneAfterTheOther) {
  RunQueue queue(1, 0);
  expect(queue, {{0, 2, 2}, {0, 1, 3}, {1, 1, 4}, {10, 1, 11}, {10, 0, 11}});
}

TEST(RunQueue, TwoCoresWorkForTwo) {
  RunQueue queue(2, 0);
  expect(queue, {{0, 2, 2}, {0, 1, 1}, {0, 1, 2}, {0, 4, 6}, {0, 1, 3}, {3, 1, 4}});
}

// The core that becomes free last before the work begins is used, so the other one can begin earlier work.
TEST(RunQueue, WorkThatBeginsLaterLeavesACoreFree) {
  RunQueue queue(2, 0);
  expect(queue, {{0, 1, 1}, {0, 2, 2}, {5, 1, 6}, {2, 1, 3}});
}

TEST(RunQueue, AsManyCoresAsProcessesMakeNobodyWait) {
  RunQueue queue(16, 0);
  for (int round = 0; round < 3; ++round)
    for (int i = 0; i < 16; ++i) EXPECT_DOUBLE_EQ(queue.run(round * 2, 1.5), round * 2 + 1.5);
}

TEST(RunQueue, TheKernelWakesOneAfterTheOther) {
  RunQueue queue(4, 2);
  for (int i = 1; i <= 3; ++i) EXPECT_DOUBLE_EQ(queue.wake(10), 10 + 2 * i);
  EXPECT_DOUBLE_EQ(queue.wake(30), 32);
  RunQueue nothing(4, 0);
  EXPECT_DOUBLE_EQ(nothing.wake(10), 10);
}

// With one core, the kernel wakes processes before any of them can run.
TEST(RunQueue, WakingTakesACore) {
  RunQueue one(1, 1);
  std::vector<double> awake;
  for (int i = 0; i < 3; ++i) awake.push_back(one.wake(0));
  EXPECT_EQ(awake, (std::vector<double>{1, 2, 3}));
  EXPECT_DOUBLE_EQ(one.run(awake[0], 5), 8);
}

/// Returns when the last of `processes` that wait for the same page has worked for `woken_s` with it.
double last_of(unsigned processes, unsigned cores, double wake_s, double woken_s) {
  RunQueue queue(cores, wake_s);
  std::vector<double> awake;
  for (unsigned i = 0; i < processes; ++i) awake.push_back(queue.wake(0));
  double last = 0;
  for (const double from : awake) last = std::max(last, queue.run(from, woken_s));
  return last;
}

// The mutation "wake-ups cost nothing" changes each row whose processes are more than the cores.
TEST(RunQueue, TheCostOfWakingGrowsWithTheProcesses) {
  struct Row {
    unsigned processes, cores;
    double seconds, without;
  };
  for (const Row& r : std::vector<Row>{{1, 1, 9, 0}, {16, 1, 144, 0}, {64, 1, 576, 0}, {36, 36, 44, 0}}) {
    EXPECT_DOUBLE_EQ(last_of(r.processes, r.cores, 1, 8), r.seconds) << r.processes << " on " << r.cores;
    EXPECT_DOUBLE_EQ(last_of(r.processes, r.cores, 0, 0), r.without);
  }
  EXPECT_NEAR(last_of(64, 2, 1, 8), 64 * 9 / 2.0, 40);
}

TEST(RunQueue, ACoreIsNeeded) { EXPECT_THROW(RunQueue(0, 0), std::invalid_argument); }

}  // namespace
}  // namespace lmdbio::bench
