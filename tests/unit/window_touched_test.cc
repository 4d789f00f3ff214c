// The page tables as a sensor: a real mapping of a real file, touched here and there.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <vector>

#include "lmdbio/base/mapping.h"
#include "lmdbio/base/unique_fd.h"
#include "lmdbio/window/touched.h"
#include "lmdbio/window/window.h"

namespace lmdbio::window {
namespace {

constexpr std::size_t kValue = 196608, kValues = 64;

class Touched : public ::testing::Test {
 protected:
  void SetUp() override {
    char path[] = "touched_test_XXXXXX";
    fd_.reset(::mkstemp(path));
    ASSERT_TRUE(fd_);
    ASSERT_EQ(::unlink(path), 0);
    const std::vector<char> bytes(kValue, 'x');
    for (std::size_t i = 0; i < kValues; ++i)
      ASSERT_EQ(::write(fd_.get(), bytes.data(), kValue), static_cast<ssize_t>(kValue));
    ASSERT_EQ(::fdatasync(fd_.get()), 0);
    map();
    sensor_.emplace(TouchedPages::open());
    if (!*sensor_) GTEST_SKIP() << "/proc/self/pagemap is not to be had";
  }
  void map() {
    Result<Mapping> mapped = Mapping::map_file(fd_.get(), kValue * kValues, Window::kHugePage);
    ASSERT_TRUE(mapped);
    map_ = std::move(mapped).value();
  }
  const std::byte* value(std::size_t i) const { return map_.data() + i * kValue; }
  const std::byte* sample(std::size_t i) const { return value(i) + kValue / 2; }
  void touch(std::size_t i) const {
    for (std::size_t at = 0; at < kValue; at += 512)
      (void)*static_cast<const volatile std::byte*>(value(i) + at);
  }

  UniqueFd fd_;
  Mapping map_;
  std::optional<TouchedPages> sensor_;
};

// Cold and warm: those that were read, and no neighbour of theirs.
TEST_F(Touched, TellsWhichValuesWereRead) {
  for (const bool warm : {true, false}) {
    for (const std::size_t period : {1u, 2u, 3u, 8u}) {
      map();
      if (!warm) (void)::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
      for (std::size_t i = 0; i < kValues; ++i)
        ASSERT_EQ(sensor_->look(sample(i)), TouchedPages::Page::absent);
      for (std::size_t i = 1 % period; i < kValues; i += period) touch(i);
      for (std::size_t i = 0; i < kValues; ++i)
        ASSERT_EQ(sensor_->look(sample(i)),
                  i % period == 1 % period ? TouchedPages::Page::touched : TouchedPages::Page::absent)
            << i << " of each " << period;
    }
  }
}

// Reads into the page cache are no touch: what was fetched ahead can be told from what was read.
TEST_F(Touched, FetchedIsNotTouched) {
  (void)::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
  std::vector<char> bytes(kValue * kValues);
  ASSERT_EQ(::pread(fd_.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  for (std::size_t i = 0; i < kValues; ++i) ASSERT_EQ(sensor_->look(sample(i)), TouchedPages::Page::absent);
}

// Private memory says nothing: it was there before anybody read it.
TEST_F(Touched, PrivateMemoryIsUnknown) {
  const Result<Mapping> zeroed = Mapping::zeroed(4096);
  ASSERT_TRUE(zeroed);
  zeroed.value().data()[0] = std::byte{1};
  EXPECT_EQ(sensor_->look(zeroed.value().data()), TouchedPages::Page::unknown);
}

// The descriptor is of the parent's tables.
TEST_F(Touched, ForkedChildKnowsNothing) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(*sensor_ ? 1 : 0);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(*sensor_);
}

TEST_F(Touched, NothingOpenedIsUnknown) {
  const TouchedPages none;
  EXPECT_FALSE(none);
  EXPECT_EQ(none.look(sample(0)), TouchedPages::Page::unknown);
}

}  // namespace
}  // namespace lmdbio::window
