// Waits that the program may end.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "lmdbio/base/futex.h"
#include "lmdbio/base/interrupt.h"

namespace lmdbio {
namespace {

struct Program {
  int calls = 0;
  int answer = 0;
  static int ask(void* self) {
    auto& p = *static_cast<Program*>(self);
    ++p.calls;
    return p.answer;
  }
};

class InterruptTest : public testing::Test {
 protected:
  ~InterruptTest() override { set_interrupt(nullptr, nullptr); }
  /// As waits do, until the program was asked once more.
  bool wait() {
    const int before = program_.calls;
    for (;;) {
      const bool ended = interrupted();
      if (ended || program_.calls != before) return ended;
    }
  }
  Program program_;
};

TEST_F(InterruptTest, NobodyAsks) {
  EXPECT_FALSE(interrupted());
  std::atomic<bool> cancelled{false};
  EXPECT_FALSE(wait_ended(cancelled));
  cancelled = true;
  EXPECT_TRUE(wait_ended(cancelled));
}

TEST_F(InterruptTest, AsksOnceInAPeriod) {
  set_interrupt(&Program::ask, &program_);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(interrupted());
  EXPECT_EQ(program_.calls, 0) << "a call that does not wait does not ask";
  const std::int64_t begun = now_ns();
  for (int i = 1; i <= 3; ++i) {
    EXPECT_FALSE(wait());
    EXPECT_EQ(program_.calls, i);
  }
  EXPECT_GE(now_ns() - begun, 200'000'000);
}

TEST_F(InterruptTest, ACallThatWasEndedStaysSo) {
  set_interrupt(&Program::ask, &program_);
  program_.answer = -1;
  EXPECT_TRUE(wait());
  program_.answer = 0;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(interrupted());
  EXPECT_EQ(program_.calls, 1);
  forget_interrupt();
  EXPECT_FALSE(interrupted()) << "the next call";
}

TEST_F(InterruptTest, IsOfOneThread) {
  set_interrupt(&Program::ask, &program_);
  program_.answer = -1;
  EXPECT_TRUE(wait());
  std::thread([] { EXPECT_FALSE(interrupted()); }).join();
}

}  // namespace
}  // namespace lmdbio
