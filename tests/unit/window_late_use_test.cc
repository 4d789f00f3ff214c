// When values that walks have passed by come to be read: which samples are looked at, and what they tell.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "lmdbio/window/late_use.h"

namespace lmdbio::window {
namespace {

using Page = TouchedPages::Page;

/// Addresses in a file of `n` pages that is never there.
class File {
 public:
  explicit File(std::size_t n) : bytes_(n * kPage), touched_(n) {}
  std::vector<const std::byte*> pages(std::size_t first, std::size_t n) const {
    std::vector<const std::byte*> some;
    for (std::size_t i = first; i < first + n; ++i) some.push_back(bytes_.data() + i * kPage);
    return some;
  }
  void touch(std::size_t page) { touched_[page] = true; }
  /// One look; what it says.
  bool look(LateUse& use, bool faulted = true) {
    std::array<const std::byte*, LateUse::kMost> addresses;
    looked_ = use.to_look_at(addresses, faulted);
    std::vector<Page> found;
    for (std::size_t i = 0; i < looked_; ++i) {
      const auto page = static_cast<std::size_t>(addresses[i] - bytes_.data()) / kPage;
      found.push_back(touched_[page] ? Page::touched : Page::absent);
    }
    return use.saw({addresses.data(), looked_}, found);
  }
  std::size_t looked() const { return looked_; }

 private:
  static constexpr std::size_t kPage = 16;
  std::vector<std::byte> bytes_;
  std::vector<bool> touched_;
  std::size_t looked_ = 0;
};

TEST(LateUse, SamplesAreSpreadOverWhatIsPassedBy) {
  constexpr std::size_t kPages = 10000;
  File file(kPages);
  LateUse use;
  EXPECT_FALSE(use.is_watched());
  for (std::size_t i = 0; i < kPages; i += 10) use.add(file.pages(i, 10), 4096);
  EXPECT_TRUE(use.is_watched());
  EXPECT_EQ(use.used_bytes(), 4096u);
  EXPECT_FALSE(file.look(use));
  EXPECT_GE(file.looked(), LateUse::kMost / 2);
  EXPECT_LT(file.looked(), LateUse::kMost);
  // Every page is touched: each sample was one of them.
  for (std::size_t i = 0; i < kPages; ++i) file.touch(i);
  EXPECT_TRUE(file.look(use));
}

TEST(LateUse, AFewUsedAllOverTheFile) {
  File file(100);
  LateUse use;
  use.add(file.pages(0, 100), 1);
  EXPECT_FALSE(file.look(use));
  for (const std::size_t page : {3u, 50u, 97u}) file.touch(page);
  EXPECT_FALSE(file.look(use)) << "too few";
  file.touch(20);
  EXPECT_TRUE(file.look(use));
}

TEST(LateUse, NotWhatIsReadInOrderFromTheBeginning) {
  File file(100);
  LateUse use;
  use.add(file.pages(0, 100), 1);
  EXPECT_FALSE(file.look(use));
  for (std::size_t i = 0; i < 45; ++i) file.touch(i);
  EXPECT_FALSE(file.look(use));
}

TEST(LateUse, WhatWasInUseBeforeSaysNothing) {
  File file(100);
  for (std::size_t i = 0; i < 100; i += 2) file.touch(i);
  LateUse use;
  use.add(file.pages(0, 100), 1);
  EXPECT_FALSE(file.look(use));
  EXPECT_FALSE(file.look(use));
  EXPECT_EQ(file.looked(), 50u);
}

TEST(LateUse, WithoutFaultsOnlyNewSamplesAreLookedAt) {
  File file(100);
  LateUse use;
  use.add(file.pages(0, 50), 1);
  EXPECT_FALSE(file.look(use, false));
  EXPECT_EQ(file.looked(), 50u);
  use.add(file.pages(50, 50), 1);
  EXPECT_FALSE(file.look(use, false));
  EXPECT_EQ(file.looked(), 50u);
  EXPECT_FALSE(file.look(use, false));
  EXPECT_EQ(file.looked(), 0u);
  EXPECT_FALSE(file.look(use, true));
  EXPECT_EQ(file.looked(), 100u);
}

TEST(LateUse, NobodyLooksForEver) {
  File file(10);
  LateUse use;
  use.add(file.pages(0, 10), 1);
  unsigned looks = 0;
  for (; use.is_watched(); ++looks) EXPECT_FALSE(file.look(use));
  EXPECT_EQ(looks, LateUse::kLooks);
  use.add(file.pages(0, 1), 1);  // another walk
  EXPECT_TRUE(use.is_watched());
  use.end();
  use.add(file.pages(0, 10), 1);
  EXPECT_FALSE(use.is_watched());
}

TEST(LateUse, AForkedChildBeginsAnew) {
  File file(10);
  LateUse use;
  use.add(file.pages(0, 10), 1);
  use.after_fork();
  EXPECT_FALSE(use.is_watched());
  use.add(file.pages(0, 10), 1);
  EXPECT_TRUE(use.is_watched());
}

}  // namespace
}  // namespace lmdbio::window
