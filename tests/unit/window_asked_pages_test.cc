// What was asked for, against a map of bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "lmdbio/window/asked_pages.h"
#include "tests/support/rng.h"

namespace lmdbio::window {
namespace {

constexpr std::uint64_t kPage = AskedPages::kPage;

TEST(AskedPages, AgainstAMap) {
  constexpr std::uint64_t kPages = 700, kFrom = (std::uint64_t{64} << 20) / kPage - 300;  // two areas
  test::Rng rng(7);
  for (int round = 0; round < 200; ++round) {
    AskedPages pages;
    std::vector<bool> in(kPages);
    for (int step = 0; step < 60; ++step) {
      const std::uint64_t from = rng.below(kPages * kPage), most = kPages * kPage - from;
      const Extent e{kFrom * kPage + from,
                     std::min<std::uint64_t>(most, rng.below(rng.percent(30) ? most + 1 : 20 * kPage))};
      const std::uint64_t first = from / kPage, end = e.bytes == 0 ? first : (from + e.bytes - 1) / kPage + 1;
      std::uint64_t known = 0, missing = first;
      for (std::uint64_t p = first; p < end; ++p) known += in[p];
      EXPECT_EQ(pages.bytes_of(e), known * kPage);
      while (missing < end && in[missing]) ++missing;
      const Extent m = pages.first_missing(e);
      if (missing == end) {
        EXPECT_EQ(m.bytes, 0u);
      } else {
        std::uint64_t to = missing;
        while (to < end && !in[to]) ++to;
        const std::uint64_t begin = std::max((kFrom + missing) * kPage, e.offset);
        EXPECT_EQ(m, (Extent{begin, std::min((kFrom + to) * kPage, e.offset + e.bytes) - begin}));
      }
      const bool add = rng.percent(60);
      if (add)
        pages.add(e);
      else
        pages.remove(e);
      for (std::uint64_t p = first; p < end; ++p) in[p] = add;
    }
    pages.clear();
    EXPECT_EQ(pages.bytes_of({kFrom * kPage, kPages * kPage}), 0u);
  }
}

TEST(AskedPages, OffsetsOfDamagedPages) {
  AskedPages pages;
  for (const Extent& e : {Extent{~std::uint64_t{0} - 5, 4096}, Extent{~std::uint64_t{0}, 1},
                          Extent{std::uint64_t{1} << 63, 1}, Extent{0, 0}}) {
    const Extent m = pages.first_missing(e);
    EXPECT_LE(m.bytes, e.bytes);
    pages.add(m);
    EXPECT_EQ(pages.first_missing(m).bytes, 0u) << "a loop over what is missing ends";
  }
}

}  // namespace
}  // namespace lmdbio::window
