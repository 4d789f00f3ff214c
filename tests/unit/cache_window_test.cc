// The window: addresses, and the bounds test that keeps every access inside.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <vector>

#include "lmdbio/cache/window.h"
#include "tests/support/temp_file.h"
#include "tests/support/test_bytes.h"

namespace lmdbio::cache {
namespace {

using format::Pgno;
constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

TEST(WindowView, AtGivesPagesInside) {
  const auto bytes = testing::pattern(10 * 512);
  const Window w = Window::over(bytes, 512);
  EXPECT_EQ(w.length(), bytes.size());
  const WindowView v = w.view(8);
  EXPECT_EQ(v.pages(), 8u);
  EXPECT_EQ(v.page_size(), 512u);
  for (std::uint64_t p = 0; p < 12; ++p) {
    for (std::uint64_t n = 1; n < 12; ++n)
      EXPECT_EQ(v.at(Pgno{p}, n), p + n <= 8 ? bytes.data() + p * 512 : nullptr) << p << ' ' << n;
  }
  for (const std::uint64_t p : {kMax, kMax - 7, kMax >> 9, std::uint64_t{1} << 55, std::uint64_t{1} << 63}) {
    EXPECT_EQ(v.at(Pgno{p}), nullptr) << p;
    EXPECT_EQ(v.at(Pgno{1}, p), nullptr) << p;
    EXPECT_EQ(v.at(Pgno{p}, p), nullptr) << p;
  }
}

TEST(WindowView, FindGivesRunsInside) {
  for (std::size_t page = 512; page <= 32768; page *= 2) {
    const std::vector<std::byte> bytes(6 * page);
    const WindowView v = Window::over(bytes, page).view(5);
    for (std::uint64_t p = 0; p < 7; ++p) {
      for (std::uint64_t pages = 1; pages < 7; ++pages) {
        const std::uint64_t most = pages * page - format::kPageHeader;
        const std::byte* run = nullptr;
        EXPECT_EQ(v.find(Pgno{p}, most, run), p + pages <= 5) << page << ' ' << p << ' ' << pages;
        if (p + pages <= 5) {
          EXPECT_EQ(run, bytes.data() + p * page + format::kPageHeader);
        }
        EXPECT_EQ(v.find(Pgno{p}, most + 1, run), p + pages + 1 <= 5) << page << ' ' << p << ' ' << pages;
      }
    }
    const std::byte* run = nullptr;
    EXPECT_TRUE(v.find(Pgno{4}, 0, run));
    EXPECT_FALSE(v.find(Pgno{5}, 0, run));
    EXPECT_FALSE(v.find(Pgno{kMax}, 0, run));
    EXPECT_FALSE(v.find(Pgno{0}, 0xffffffff, run));
  }
}

TEST(WindowView, HintNeverLeaves) {
  const std::vector<std::byte> bytes(4 * 512);
  const WindowView v = Window::over(bytes, 512).view(3);
  EXPECT_EQ(v.hint(Pgno{2}), bytes.data() + 1024);
  for (const std::uint64_t p : {std::uint64_t{3}, kMax}) EXPECT_EQ(v.hint(Pgno{p}), bytes.data());
}

TEST(WindowView, NothingWithoutAWindow) {
  const WindowView none;
  const std::byte* run = nullptr;
  EXPECT_EQ(none.at(Pgno{0}), nullptr);
  EXPECT_FALSE(none.find(Pgno{0}, 0, run));
}

TEST(Window, ViewIsCutToTheWindow) {
  const std::vector<std::byte> bytes(3 * 512 + 511);
  const Window w = Window::over(bytes, 512);
  for (const std::uint64_t pages : {std::uint64_t{0}, std::uint64_t{2}, std::uint64_t{3}, std::uint64_t{4}, kMax})
    EXPECT_EQ(w.view(pages).pages(), std::min<std::uint64_t>(pages, 3)) << pages;
}

TEST(Window, MapsAFileBeyondItsEnd) {
  testing::TempFile file(testing::pattern(3 * 4096));
  for (const bool no_readahead : {false, true}) {
    const auto w = Window::map(file.fd(), std::uint64_t{64} << 20, 4096, no_readahead);
    ASSERT_TRUE(w);
    EXPECT_EQ(w.value().length(), std::uint64_t{64} << 20);
    const WindowView v = w.value().view(3);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(v.base()) % (std::uintptr_t{2} << 20), 0u);
    ASSERT_NE(v.at(Pgno{0}, 3), nullptr);
    EXPECT_EQ(std::memcmp(v.base(), testing::pattern(3 * 4096).data(), 3 * 4096), 0);
    EXPECT_EQ(v.at(Pgno{3}), nullptr);
  }
}

TEST(Window, SeesWhatIsAppended) {
  testing::TempFile file(testing::pattern(4096));
  const auto w = Window::map(file.fd(), std::uint64_t{1} << 20, 4096, false);
  ASSERT_TRUE(w);
  file.append(testing::pattern(4096, 4096));
  EXPECT_EQ(std::memcmp(w.value().view(2).base(), testing::pattern(8192).data(), 8192), 0);
}

TEST(Window, MovesKeepTheAddress) {
  testing::TempFile file(testing::pattern(4096));
  auto first = Window::map(file.fd(), 4096, 4096, false);
  ASSERT_TRUE(first);
  const std::byte* const base = first.value().view(1).base();
  const Window second = std::move(first).value();
  EXPECT_EQ(second.view(1).base(), base);
  EXPECT_EQ(*base, testing::byte_at(0));
}

TEST(Window, WhatCannotBeMapped) {
  EXPECT_EQ(Window::map(-1, 4096, 4096, false).error().raw(), EBADF);
  testing::TempFile file(testing::pattern(4096));
  EXPECT_EQ(Window::map(file.fd(), std::uint64_t{1} << 62, 4096, false).error().raw(), ENOMEM);
  EXPECT_EQ(Window::map(file.fd(), 0, 4096, false).error().raw(), EINVAL);
}

}  // namespace
}  // namespace lmdbio::cache
