#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "lmdbio/base/log.h"
#include "tests/support/child.h"

namespace lmdbio {
namespace {

using testing::in_child;

TEST(Log, OneLineWithThePrefix) {
  const auto child = in_child([] {
    log_line(LogLevel::warn, "n=%d %s", 7, "x");
    return 0;
  });
  EXPECT_EQ(child.exit_code, 0);
  EXPECT_EQ(child.err, "lmdbio: n=7 x\n");
}

TEST(Log, Levels) {
  const auto child = in_child([] {
    if (!log_enabled(LogLevel::warn) || log_enabled(LogLevel::info)) return 1;
    log_line(LogLevel::info, "no");
    set_log_level(LogLevel::error);
    log_line(LogLevel::warn, "no");
    log_line(LogLevel::error, "yes");
    set_log_level(LogLevel::debug);
    log_line(LogLevel::debug, "yes");
    return 0;
  });
  EXPECT_EQ(child.exit_code, 0);
  EXPECT_EQ(child.err, "lmdbio: yes\nlmdbio: yes\n");
}

TEST(Log, LimitedInTotal) {
  const auto child = in_child([] {
    for (unsigned i = 0; i < 3 * kLogLines; ++i) {
      log_line(LogLevel::info, "below the level: not counted");
      log_line(LogLevel::warn, "%u", i);
    }
    return 0;
  });
  std::string want;
  for (unsigned i = 0; i < kLogLines; ++i) want += "lmdbio: " + std::to_string(i) + "\n";
  EXPECT_EQ(child.err, want + "lmdbio: further messages are suppressed\n");
}

TEST(Log, LimitedInTotalOverThreads) {
  const auto child = in_child([] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([] {
        for (unsigned i = 0; i < kLogLines; ++i) log_line(LogLevel::error, "same");
      });
    for (auto& t : threads) t.join();
    return 0;
  });
  EXPECT_EQ(std::count(child.err.begin(), child.err.end(), '\n'), kLogLines + 1);
}

TEST(Log, ControlCharactersAndLengthAreTamed) {
  const auto child = in_child([] {
    log_line(LogLevel::warn, "a\nb\tc\x1b[0m\x7f \xc3\xa9");
    log_line(LogLevel::warn, "%s", std::string(5000, 'x').c_str());
    log_line(LogLevel::warn, "%s", "after");
    return 0;
  });
  const std::string first = "lmdbio: a?b?c?[0m? \xc3\xa9\n", last = "lmdbio: after\n";
  ASSERT_GT(child.err.size(), first.size() + last.size());
  EXPECT_EQ(child.err.substr(0, first.size()), first);
  EXPECT_EQ(child.err.substr(child.err.size() - last.size()), last);
  const std::string middle = child.err.substr(first.size(), child.err.size() - first.size() - last.size());
  EXPECT_EQ(middle.size(), 1024u);
  EXPECT_EQ(middle.back(), '\n');
  EXPECT_EQ(std::count(middle.begin(), middle.end(), 'x'), 1024 - 8 - 1);
}

TEST(Log, KeepsErrno) {
  const auto child = in_child([] {
    ::close(STDERR_FILENO);
    errno = EXDEV;
    log_line(LogLevel::warn, "%m");
    if (errno != EXDEV) return 1;
    for (unsigned i = 0; i < 2 * kLogLines; ++i) log_line(LogLevel::warn, "x");
    return errno == EXDEV ? 0 : 2;
  });
  EXPECT_EQ(child.exit_code, 0);
  const auto spoken = in_child([] {
    errno = EXDEV;
    log_line(LogLevel::warn, "%m");
    return 0;
  });
  EXPECT_EQ(spoken.err, "lmdbio: Invalid cross-device link\n");
}

}  // namespace
}  // namespace lmdbio
