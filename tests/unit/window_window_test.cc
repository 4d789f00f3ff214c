// The window: addresses, and the bounds test that keeps every access inside.
#include "lmdbio/window/window.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/support/format_version.h"
#include "tests/support/temp_file.h"
#include "tests/support/test_bytes.h"

namespace lmdbio::window {
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
    const WindowView v = Window::over(bytes, testing::pages_of(page)).view(5);
    for (std::uint64_t p = 0; p < 7; ++p) {
      for (std::uint64_t pages = 1; pages < 7; ++pages) {
        const std::uint64_t most = pages * page - testing::kPageHeader;
        const std::byte* run = nullptr;
        EXPECT_EQ(v.find(Pgno{p}, most, run), p + pages <= 5) << page << ' ' << p << ' ' << pages;
        if (p + pages <= 5) {
          EXPECT_EQ(run, bytes.data() + p * page + testing::kPageHeader);
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
  for (const std::uint64_t pages :
       {std::uint64_t{0}, std::uint64_t{2}, std::uint64_t{3}, std::uint64_t{4}, kMax})
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

// --- pieces that change places ----------------------------------------------------------------------------

constexpr std::size_t kPiece = Window::kHugePage;

/// Staging that holds what a file of pattern() has at `offset`, and zeros beyond its end, changed by `by`.
Staging staged(std::uint64_t offset, std::size_t file_bytes, std::byte by = {}) {
  Staging s = std::move(Staging::make(kPiece).value());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(s.data()) % kPiece, 0u);
  const std::size_t n = std::min<std::uint64_t>(kPiece, file_bytes - offset);
  for (std::size_t i = 0; i < n; ++i) s.data()[i] = testing::byte_at(offset + i) ^ by;
  return s;
}

/// Each byte of a window over a file of pattern() is the file's, or in `piece` changed by `by`.
bool holds(const Window& w, std::size_t bytes, std::uint64_t piece = kMax, std::byte by = {}) {
  for (std::size_t i = 0; i < bytes; ++i)
    if (w.base()[i] != (testing::byte_at(i) ^ (i / kPiece == piece ? by : std::byte{}))) return false;
  return true;
}

constexpr std::byte kMark{0x81};

TEST(WindowPieces, PublishedAndRestored) {
  constexpr std::size_t kBytes = 3 * kPiece + 2 * 4096 + 100;
  testing::TempFile file(testing::pattern(kBytes));
  for (const bool no_readahead : {false, true}) {
    Window w = std::move(Window::map(file.fd(), 8 * kPiece, 4096, no_readahead).value());
    ASSERT_TRUE(w.prepare_restore(w.length()));
    const std::byte* const base = w.base();
    for (std::uint64_t piece = 0; piece < 4; ++piece) {
      Staging s = staged(piece * kPiece, kBytes, kMark);
      const std::size_t n = std::min<std::size_t>(kPiece, kBytes - piece * kPiece);
      ASSERT_TRUE(w.publish(piece * kPiece, n, s));
      EXPECT_FALSE(s);
      EXPECT_EQ(w.base(), base);
      EXPECT_TRUE(holds(w, kBytes, piece, kMark)) << piece;
      ASSERT_TRUE(w.restore(piece * kPiece, kPiece));
      EXPECT_TRUE(holds(w, kBytes)) << piece;
      w.use_readahead(true);
    }
    EXPECT_TRUE(w.restore(8 * kPiece, kPiece)) << "beyond the window: nothing to do";
    EXPECT_TRUE(w.restore(0, 100 * kPiece)) << "all of it";
    EXPECT_TRUE(holds(w, kBytes));
  }
}

TEST(WindowPieces, BehindTheTailTheFileStays) {
  constexpr std::size_t kBytes = kPiece + 4096;
  testing::TempFile file(testing::pattern(kBytes));
  Window w = std::move(Window::map(file.fd(), 4 * kPiece, 4096, false).value());
  ASSERT_TRUE(w.prepare_restore(w.length()));
  Staging s = staged(kPiece, kBytes);
  ASSERT_TRUE(w.publish(kPiece, 4096, s));
  file.append(testing::pattern(4096, kBytes));
  EXPECT_TRUE(holds(w, kBytes + 4096)) << "what is appended is seen";
}

TEST(WindowPieces, AWindowThatEndsInAPiece) {
  constexpr std::size_t kBytes = kPiece + 3 * 4096;
  testing::TempFile file(testing::pattern(kBytes));
  Window w = std::move(Window::map(file.fd(), kBytes, 4096, false).value());
  ASSERT_TRUE(w.prepare_restore(w.length()));
  Staging s = staged(kPiece, kBytes, kMark);
  ASSERT_TRUE(w.publish(kPiece, kPiece, s)) << "cut to the window";
  EXPECT_TRUE(holds(w, kBytes, 1, kMark));
  ASSERT_TRUE(w.restore(kPiece, kPiece));
  EXPECT_TRUE(holds(w, kBytes));
}

TEST(WindowPieces, PublishedMemoryIsReadOnly) {
  testing::TempFile file(testing::pattern(kPiece));
  Window w = std::move(Window::map(file.fd(), kPiece, 4096, false).value());
  ASSERT_TRUE(w.prepare_restore(w.length()));
  Staging s = staged(0, kPiece);
  ASSERT_TRUE(w.publish(0, kPiece, s));
  // The kernel writes there no more than we: no signal.
  errno = 0;
  EXPECT_EQ(::pread(file.fd(), const_cast<std::byte*>(w.base()), 1, 0), -1);
  EXPECT_EQ(errno, EFAULT);
}

class WindowCallsFail : public ::testing::Test {
 protected:
  WindowCallsFail() : before_(window_calls()) {}
  ~WindowCallsFail() override { window_calls() = before_; }
  static void* no_mremap(void*, std::size_t, void*) noexcept { return errno = ENOMEM, MAP_FAILED; }
  const WindowCalls before_;
};

TEST_F(WindowCallsFail, NothingHasChanged) {
  testing::TempFile file(testing::pattern(2 * kPiece));
  Window w = std::move(Window::map(file.fd(), 2 * kPiece, 4096, false).value());
  ASSERT_TRUE(w.prepare_restore(w.length()));
  Staging s = staged(0, kPiece, kMark);
  window_calls().mremap = no_mremap;
  EXPECT_FALSE(w.publish(0, kPiece, s));
  EXPECT_TRUE(holds(w, 2 * kPiece));
  ASSERT_TRUE(s);
  EXPECT_EQ(s.size(), kPiece);
  EXPECT_EQ(s.data()[5], testing::byte_at(5) ^ kMark) << "as it was, and may be written";
  s.data()[0] = s.data()[1];
  s.data()[0] = testing::byte_at(0) ^ kMark;
  window_calls().mremap = before_.mremap;
  ASSERT_TRUE(w.publish(0, kPiece, s));
  window_calls().duplicate = no_mremap;
  EXPECT_FALSE(w.restore(0, kPiece));
  EXPECT_FALSE(w.restore(0, w.length()));
  EXPECT_TRUE(holds(w, 2 * kPiece, 0, kMark));
  window_calls().duplicate = before_.duplicate;
  ASSERT_TRUE(w.restore(0, kPiece));
  EXPECT_TRUE(holds(w, 2 * kPiece));
}

TEST(WindowPieces, RestoredWithoutADescriptor) {
  constexpr std::size_t kBytes = 2 * kPiece;
  std::optional<testing::TempFile> file(std::in_place, testing::pattern(kBytes));
  Window w = std::move(Window::map(file->fd(), kBytes, 4096, false).value());
  ASSERT_TRUE(w.prepare_restore(kBytes));
  file.reset();  // closed and unlinked
  Staging s = staged(kPiece, kBytes, kMark);
  ASSERT_TRUE(w.publish(kPiece, kPiece, s));
  EXPECT_TRUE(holds(w, kBytes, 1, kMark));
  ASSERT_TRUE(w.restore(kPiece, kPiece));
  EXPECT_TRUE(holds(w, kBytes));
}

TEST_F(WindowCallsFail, NotPreparedNothingIsPublished) {
  testing::TempFile file(testing::pattern(kPiece));
  Window w = std::move(Window::map(file.fd(), kPiece, 4096, false).value());
  window_calls().duplicate = no_mremap;
  EXPECT_FALSE(w.prepare_restore(kPiece));
  window_calls().duplicate = before_.duplicate;
  Staging s = staged(0, kPiece, kMark);
  EXPECT_FALSE(w.publish(0, kPiece, s));
  EXPECT_TRUE(s);
  EXPECT_TRUE(w.restore(0, kPiece)) << "nothing was published";
  EXPECT_TRUE(holds(w, kPiece)) << "as it was";
}

TEST(WindowPieces, PreparedForMoreWhileSomeIsPublished) {
  constexpr std::size_t kBytes = 12 * kPiece;
  testing::TempFile file(testing::pattern(kBytes));
  Window w = std::move(Window::map(file.fd(), kBytes, 4096, false).value());
  ASSERT_TRUE(w.prepare_restore(1));
  Staging s = staged(0, kBytes, kMark), late = staged(11 * kPiece, kBytes);
  ASSERT_TRUE(w.publish(0, kPiece, s));
  EXPECT_FALSE(w.publish(11 * kPiece, kPiece, late));
  ASSERT_TRUE(w.prepare_restore(kBytes));
  EXPECT_TRUE(holds(w, kBytes, 0, kMark));
  ASSERT_TRUE(w.publish(11 * kPiece, kPiece, late));
  ASSERT_TRUE(w.restore(0, kPiece));
  ASSERT_TRUE(w.restore(11 * kPiece, kPiece));
  EXPECT_TRUE(holds(w, kBytes)) << "the file's own bytes, not what had been published";
}

// --- an image of the file in its place
// ----------------------------------------------------------------------

/// Each byte of the window is that of pattern(), changed by `by`.
bool holds_image(const Window& w, std::size_t bytes, std::byte by) {
  for (std::size_t i = 0; i < bytes; ++i)
    if (w.base()[i] != (testing::byte_at(i) ^ by)) return false;
  return true;
}

std::vector<std::byte> changed(std::size_t bytes, std::byte by) {
  std::vector<std::byte> b = testing::pattern(bytes);
  for (std::byte& x : b) x ^= by;
  return b;
}

constexpr std::byte kOfImage{0x42};

Mapping mapped(const testing::TempFile& file, std::size_t bytes) {
  return std::move(Mapping::map_file(file.fd(), bytes, kPiece).value());
}

TEST(WindowImage, MappedAndUnmapped) {
  constexpr std::size_t kBytes = 3 * kPiece;
  testing::TempFile file(testing::pattern(kBytes)), image(changed(kBytes, kOfImage));
  for (const bool no_readahead : {false, true}) {
    Window w = std::move(Window::map(file.fd(), 8 * kPiece, 4096, no_readahead).value());
    const std::byte* const base = w.base();
    EXPECT_FALSE(w.map_image(mapped(image, kBytes))) << "not prepared";
    EXPECT_TRUE(w.unmap_image()) << "there is none";
    ASSERT_TRUE(w.prepare_restore(kBytes));
    ASSERT_TRUE(w.map_image(mapped(image, kBytes)));
    EXPECT_EQ(w.base(), base);
    EXPECT_TRUE(holds_image(w, kBytes, kOfImage));
    EXPECT_EQ(std::memcmp(w.metas(), testing::pattern(8192).data() + 16, 8192 - 16), 0)
        << "meta pages of the file";
    EXPECT_FALSE(w.map_image(mapped(image, kBytes))) << "there is one";
    w.use_readahead(true);
    EXPECT_TRUE(holds_image(w, kBytes, kOfImage));
    ASSERT_TRUE(w.unmap_image());
    EXPECT_TRUE(holds(w, kBytes));
    w.use_readahead(false);
    ASSERT_TRUE(w.map_image(mapped(image, kBytes))) << "once more";
    EXPECT_TRUE(holds_image(w, kBytes, kOfImage));
  }
}

TEST(WindowImage, PiecesAreGivenBackToIt) {
  constexpr std::size_t kBytes = 3 * kPiece;
  testing::TempFile file(testing::pattern(kBytes)), image(changed(kBytes, kOfImage));
  Window w = std::move(Window::map(file.fd(), 8 * kPiece, 4096, false).value());
  ASSERT_TRUE(w.prepare_restore(kBytes));
  ASSERT_TRUE(w.map_image(mapped(image, kBytes)));
  Staging s = staged(kPiece, kBytes, kMark);
  ASSERT_TRUE(w.publish(kPiece, kPiece, s));
  EXPECT_EQ(w.base()[kPiece + 7], testing::byte_at(kPiece + 7) ^ kMark);
  ASSERT_TRUE(w.restore(kPiece, kPiece));
  EXPECT_TRUE(holds_image(w, kBytes, kOfImage));
  s = staged(kPiece, kBytes, kMark);
  ASSERT_TRUE(w.publish(kPiece, kPiece, s));
  ASSERT_TRUE(w.unmap_image());
  EXPECT_TRUE(holds(w, kBytes)) << "published pieces are given back as well";
  s = staged(kPiece, kBytes, kMark);
  ASSERT_TRUE(w.publish(kPiece, kPiece, s));
  EXPECT_TRUE(holds(w, kBytes, 1, kMark));
  ASSERT_TRUE(w.restore(0, w.length()));
  EXPECT_TRUE(holds(w, kBytes)) << "from now on, to the file";
}

// The rest of the file follows an image that is shorter, and a shorter window has the start of an image.
TEST(WindowImage, OfOtherLengths) {
  constexpr std::size_t kBytes = 5 * kPiece;
  testing::TempFile file(testing::pattern(kBytes)), image(changed(2 * kPiece, kOfImage));
  {
    Window w = std::move(Window::map(file.fd(), 8 * kPiece, 4096, false).value());
    ASSERT_TRUE(w.prepare_restore(kBytes));
    ASSERT_TRUE(w.map_image(mapped(image, 2 * kPiece)));
    EXPECT_TRUE(holds_image(w, 2 * kPiece, kOfImage));
    EXPECT_EQ(std::memcmp(w.base() + 2 * kPiece, testing::pattern(3 * kPiece, 2 * kPiece).data(), 3 * kPiece),
              0);
    Staging s = staged(3 * kPiece, kBytes, kMark);
    EXPECT_FALSE(w.publish(3 * kPiece, kPiece, s)) << "it could not be given back";
    EXPECT_FALSE(w.prepare_restore(20 * kPiece)) << "not while there is an image";
    ASSERT_TRUE(w.unmap_image());
    EXPECT_TRUE(holds(w, kBytes));
    ASSERT_TRUE(w.prepare_restore(kBytes));
    ASSERT_TRUE(w.publish(3 * kPiece, kPiece, s));
  }
  Window w = std::move(Window::map(file.fd(), kPiece + 4096, 4096, false).value());
  ASSERT_TRUE(w.prepare_restore(w.length()));
  ASSERT_TRUE(w.map_image(mapped(image, 2 * kPiece)));
  EXPECT_TRUE(holds_image(w, kPiece + 4096, kOfImage));
  ASSERT_TRUE(w.restore(0, w.length()));
  EXPECT_TRUE(holds_image(w, kPiece + 4096, kOfImage));
  ASSERT_TRUE(w.unmap_image());
  EXPECT_TRUE(holds(w, kPiece + 4096));
}

TEST_F(WindowCallsFail, AnImageStaysOrDoesNotCome) {
  constexpr std::size_t kBytes = 2 * kPiece;
  testing::TempFile file(testing::pattern(kBytes)), image(changed(kBytes, kOfImage));
  Window w = std::move(Window::map(file.fd(), kBytes, 4096, false).value());
  ASSERT_TRUE(w.prepare_restore(kBytes));
  window_calls().duplicate = no_mremap;
  EXPECT_FALSE(w.map_image(mapped(image, kBytes)));
  EXPECT_TRUE(holds(w, kBytes));
  EXPECT_TRUE(w.unmap_image()) << "there is none";
  window_calls().duplicate = before_.duplicate;
  Staging s = staged(0, kBytes, kMark);
  ASSERT_TRUE(w.publish(0, kPiece, s));
  ASSERT_TRUE(w.restore(0, kPiece));
  EXPECT_TRUE(holds(w, kBytes)) << "pieces still go back to the file";
  ASSERT_TRUE(w.map_image(mapped(image, kBytes)));
  s = staged(kPiece, kBytes, kMark);
  ASSERT_TRUE(w.publish(kPiece, kPiece, s));
  window_calls().duplicate = no_mremap;
  EXPECT_FALSE(w.unmap_image());
  EXPECT_FALSE(w.restore(kPiece, kPiece));
  EXPECT_EQ(w.base()[0], testing::byte_at(0) ^ kOfImage);
  EXPECT_EQ(w.base()[kPiece], testing::byte_at(kPiece) ^ kMark);
  window_calls().duplicate = before_.duplicate;
  ASSERT_TRUE(w.restore(kPiece, kPiece));
  EXPECT_TRUE(holds_image(w, kBytes, kOfImage)) << "it is still there";
  ASSERT_TRUE(w.unmap_image());
  EXPECT_TRUE(holds(w, kBytes));
}

Result<std::shared_ptr<Window>> shared_window(int fd, std::uint64_t length, std::size_t page = 4096,
                                              bool no_readahead = false, std::uint64_t used = 4096) {
  const Result<FileIdentity> id = identity_of(fd);
  return Window::shared(fd, id ? id.value() : FileIdentity(), length, page, no_readahead, used);
}

TEST(WindowShared, OnlyWhatIsAlikeAndOnlyWhileItIsUsed) {
  testing::TempFile file(testing::pattern(4096)), other(testing::pattern(4096));
  const auto get = [](const testing::TempFile& f, std::uint64_t length, std::size_t page, bool no_readahead) {
    return shared_window(f.fd(), length, page, no_readahead).value();
  };
  const auto w = get(file, kPiece, 4096, false);
  EXPECT_EQ(get(file, kPiece, 4096, false), w);
  {
    const UniqueFd again(::open(file.path(), O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(shared_window(again.get(), kPiece).value(), w) << "by another descriptor";
  }
  EXPECT_NE(get(other, kPiece, 4096, false), w);
  EXPECT_NE(get(file, 2 * kPiece, 4096, false), w);
  EXPECT_NE(get(file, kPiece, 512, false), w);
  EXPECT_NE(get(file, kPiece, 4096, true), w);
  std::weak_ptr<Window> gone = get(other, kPiece, 4096, false);
  EXPECT_TRUE(gone.expired()) << "the list keeps none alive";
  EXPECT_EQ(shared_window(-1, kPiece).error().raw(), EBADF);
}

// Terabytes of maps: windows are as long as the maps at first, and then have room for what is in use.
TEST(WindowShared, ShortWhereWindowsTakeTerabytes) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer leaves no room for a terabyte";
#endif
  constexpr std::uint64_t kTib = std::uint64_t{1} << 40;
  std::list<testing::TempFile> files;
  std::vector<std::shared_ptr<Window>> windows;
  std::uint64_t sum = 0;
  for (int i = 0; i < 20; ++i) {
    files.emplace_back(testing::pattern(4096));
    windows.push_back(shared_window(files.back().fd(), kTib).value());
    EXPECT_EQ(windows.back()->capacity(), kTib);
    sum += windows.back()->length();
  }
  EXPECT_EQ(windows.front()->length(), kTib);
  EXPECT_LT(windows.back()->length(), kTib / 100);
  EXPECT_LT(sum, 5 * kTib);
  EXPECT_TRUE(windows.back()->grow(windows.back()->length()));
  EXPECT_FALSE(windows.back()->grow(2 * kTib)) << "the map ends before";
}

// Addresses that no view has used are given up, and had again where nobody has taken them.
TEST(WindowShared, Shrinks) {
  constexpr std::uint64_t kGib = std::uint64_t{1} << 30;
  const auto contents = testing::pattern(3 * kPiece);
  testing::TempFile file(contents);
  const auto w = shared_window(file.fd(), 8 * kGib).value();
  EXPECT_EQ(w->length(), 8 * kGib);
  EXPECT_EQ(w->view(3 * kPiece / 4096).pages(), 3 * kPiece / 4096);
  const std::byte* const base = w->base();
  EXPECT_TRUE(Window::shrink_all());
  EXPECT_FALSE(Window::shrink_all()) << "nothing is left to give up";
  EXPECT_LT(w->length(), kGib);
  EXPECT_GE(w->length(), 3 * kPiece);
  EXPECT_EQ(w->view(8 * kGib / 4096).pages(), w->length() / 4096);
  ASSERT_TRUE(w->grow(kGib));
  EXPECT_GE(w->length(), kGib);
  EXPECT_EQ(w->base(), base);
  EXPECT_EQ(std::memcmp(w->base(), contents.data(), contents.size()), 0);
  // What was viewed stays.
  EXPECT_EQ(w->view(kGib / 4096).pages(), kGib / 4096);
  (void)Window::shrink_all();
  EXPECT_GE(w->length(), kGib);
  file.append(testing::pattern(kPiece));
  EXPECT_EQ(std::memcmp(w->base() + 3 * kPiece, testing::pattern(kPiece).data(), kPiece), 0);
}

TEST(WindowShared, GrowsAndShrinksWithAnImage) {
  constexpr std::uint64_t kGib = std::uint64_t{1} << 30;
  constexpr std::size_t kBytes = 3 * kPiece;
  testing::TempFile file(testing::pattern(kBytes)), image(changed(kBytes, kOfImage));
  const auto w = shared_window(file.fd(), 8 * kGib).value();
  ASSERT_TRUE(w->prepare_restore(kBytes));
  ASSERT_TRUE(w->map_image(mapped(image, kBytes)));
  EXPECT_TRUE(Window::shrink_all());
  EXPECT_LT(w->length(), kGib);
  ASSERT_TRUE(w->grow(kGib));
  EXPECT_TRUE(holds_image(*w, kBytes, kOfImage));
  file.append(testing::pattern(kPiece, kBytes));
  EXPECT_EQ(std::memcmp(w->base() + kBytes, testing::pattern(kPiece, kBytes).data(), kPiece), 0);
  (void)Window::shrink_all();
  ASSERT_TRUE(w->unmap_image());
  EXPECT_TRUE(holds(*w, kBytes + kPiece));
}

// An environment that has had no transaction yet: its first one needs them.
TEST(WindowShared, BytesInUseAreNotGivenUp) {
  constexpr std::uint64_t kGib = std::uint64_t{1} << 30;
  testing::TempFile file(testing::pattern(4096));
  const auto w = shared_window(file.fd(), 8 * kGib, 4096, false, kGib).value();
  EXPECT_TRUE(Window::shrink_all());
  EXPECT_GE(w->length(), kGib);
  EXPECT_LT(w->length(), 2 * kGib);
}

TEST(WindowAnonymous, PagesAppearByPublish) {
  constexpr std::size_t kBytes = 2 * kPiece + 4096;
  testing::TempFile file(testing::pattern(kBytes));
  Window w = std::move(Window::reserve(4 * kPiece, 4096).value());
  EXPECT_FALSE(w.has_file());
  EXPECT_EQ(w.length(), 4 * kPiece);
  const auto readable = [&w](std::uint64_t at) {  // by the kernel: no signal
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const UniqueFd in(ends[0]), out(ends[1]);
    return ::write(out.get(), w.base() + at, 1) == 1;
  };
  EXPECT_FALSE(readable(0));
  for (std::uint64_t piece = 0; piece < 3; ++piece) {
    Staging s = staged(piece * kPiece, kBytes);
    ASSERT_TRUE(w.publish(piece * kPiece, std::min<std::size_t>(kPiece, kBytes - piece * kPiece), s));
  }
  EXPECT_TRUE(holds(w, kBytes));
  EXPECT_FALSE(readable(kBytes)) << "beyond what was published";
  ASSERT_TRUE(w.restore(kPiece, kPiece));
  EXPECT_TRUE(readable(0));
  EXPECT_FALSE(readable(kPiece)) << "addresses without memory again";
  EXPECT_TRUE(readable(2 * kPiece));
}

}  // namespace
}  // namespace lmdbio::window
