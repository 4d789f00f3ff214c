// Meta pages: each field that decides, alone wrong.
#include <gtest/gtest.h>
#include <lmdb.h>

#include "lmdbio/format/meta_view.h"
#include "tests/support/file_image.h"

namespace lmdbio::format {
namespace {

using testing::ExactBytes;
using testing::FileImage;
using testing::put;

FileImage image(std::size_t page_size = 4096) {
  FileImage f(page_size);
  f.metas(FileImage::record(MDB_DUPSORT, 1, 2, 3), 41);
  return f;
}
constexpr std::size_t kAtMagic = kPageHeader, kAtVersion = kPageHeader + 4,
                      kAtPageSize = kPageHeader + offsetof(MetaRecord, dbs);

struct Verdict {
  MetaKind kind;
  int rc;  // 0: parsed
  bool operator==(const Verdict&) const = default;
};
Verdict verdict(Bytes page) {
  const ExactBytes block(page);
  const auto m = parse_meta(block.bytes());
  return {judge_meta(block.bytes()), m ? 0 : m.error().raw()};
}
template <class T>
Verdict with(std::size_t at, T value) {
  FileImage f = image();
  put(f.page(0) + at, value);
  return verdict(f.bytes().first(kMetaBytes));
}

constexpr Verdict kGood{MetaKind::good, 0}, kForeign{MetaKind::other, MDB_INVALID},
    kBadSize{MetaKind::bad_page_size, MDB_INVALID}, kOtherVersion{MetaKind::other, MDB_VERSION_MISMATCH};

TEST(MetaView, Good) {
  FileImage f = image();
  const auto m = parse_meta(f.bytes());
  ASSERT_TRUE(m);
  EXPECT_EQ(m.value().txnid, 40u);
  EXPECT_EQ(m.value().dbs[1].entries, 3u);
  EXPECT_EQ(m.value().dbs[1].flags, MDB_DUPSORT);
  EXPECT_EQ(page_size(m.value()), 4096u);
  EXPECT_EQ(parse_meta(Bytes(f.page(1), 4096)).value().txnid, 41u);
}

TEST(MetaView, NoByteTooFew) {
  FileImage f = image();
  EXPECT_EQ(verdict(f.bytes().first(kMetaBytes)), kGood);
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, kPageHeader, kMetaBytes - 1})
    EXPECT_EQ(verdict(f.bytes().first(n)), kForeign) << n;
}

TEST(MetaView, EachFieldThatDecides) {
  EXPECT_EQ(with<std::uint16_t>(kAtFlags, 0), kForeign);
  EXPECT_EQ(with<std::uint16_t>(kAtFlags, kLeaf), kForeign);
  EXPECT_EQ(with<std::uint16_t>(kAtFlags, kMeta | 0x8000), kGood) << "stock looks at the one bit";
  EXPECT_EQ(with<std::uint32_t>(kAtMagic, 0xDEC0EFBE), kForeign) << "other byte order";
  EXPECT_EQ(with<std::uint32_t>(kAtMagic, 0), kForeign);
  for (const std::uint32_t version : {0u, 2u, 3u, 999u}) EXPECT_EQ(with(kAtVersion, version), kOtherVersion);
  EXPECT_EQ(with<std::uint64_t>(0, 77), kGood) << "the page's number is not looked at";
}

TEST(MetaView, PageSizes) {
  for (std::uint32_t size = 512; size <= 32768; size *= 2) {
    FileImage f = image(size);
    EXPECT_EQ(verdict(f.bytes()), kGood) << size;
  }
  for (const std::uint32_t size :
       {0u, 1u, 256u, 511u, 513u, 768u, 4095u, 4097u, 6144u, 65536u, 1u << 31, ~0u})
    EXPECT_EQ(with(kAtPageSize, size), kBadSize) << size;
}

TEST(Layout, OverflowPages) {
  EXPECT_EQ(overflow_pages(0, 12), 1u);
  EXPECT_EQ(overflow_pages(4096 - 16, 12), 1u);
  EXPECT_EQ(overflow_pages(4096 - 15, 12), 2u);
  EXPECT_EQ(overflow_pages(8192 - 16, 12), 2u);
  EXPECT_EQ(overflow_pages(497, 9), 2u);
  EXPECT_EQ(overflow_pages(0xffffffff, 9), (0xffffffffull + 15) / 512 + 1);
}

}  // namespace
}  // namespace lmdbio::format
