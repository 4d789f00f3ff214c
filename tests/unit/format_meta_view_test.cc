// Meta pages: each field that decides, alone wrong.
#include <gtest/gtest.h>
#include <lmdb.h>

#include "lmdbio/format/meta_view.h"
#include "tests/support/file_image.h"
#include "tests/support/format_version.h"

namespace lmdbio::format {
namespace {

using testing::ExactBytes;
using testing::FileImage;
using testing::kAtFlags;
using testing::kPageHeader;
using testing::put;

FileImage image(std::size_t page_size = 4096) {
  FileImage f(page_size);
  f.metas(FileImage::record(MDB_DUPSORT, 1, 2, 3), 41);
  return f;
}
const std::size_t kAtMagic = kPageHeader, kAtVersion = kPageHeader + 4,
                  kAtPageSize = kPageHeader + offsetof(MetaRecord, dbs),
                  kBytes = meta_bytes(testing::version());

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
  return verdict(f.bytes().first(kBytes));
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
  EXPECT_EQ(verdict(f.bytes().first(kBytes)), kGood);
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, kPageHeader, kBytes - 1})
    EXPECT_EQ(verdict(f.bytes().first(n)), kForeign) << n;
}

TEST(MetaView, EachFieldThatDecides) {
  EXPECT_EQ(with<std::uint16_t>(kAtFlags, 0), kForeign);
  EXPECT_EQ(with<std::uint16_t>(kAtFlags, kLeaf), kForeign);
  EXPECT_EQ(with<std::uint16_t>(kAtFlags, kMeta | 0x8000), kGood) << "stock looks at the one bit";
  EXPECT_EQ(with<std::uint32_t>(kAtMagic, 0xDEC0EFBE), kForeign) << "other byte order";
  EXPECT_EQ(with<std::uint32_t>(kAtMagic, 0), kForeign);
  for (const std::uint32_t version : {0u, 1u, 2u, 3u, 4u, 999u}) {
    if (version != meta_version(testing::version())) {
      EXPECT_EQ(with(kAtVersion, version), kOtherVersion) << version;
    }
  }
  EXPECT_EQ(with<std::uint64_t>(0, 77), kGood) << "the page's number is not looked at";
}

TEST(MetaView, PageSizes) {
  const auto most = static_cast<std::uint32_t>(max_page_size(testing::version()));
  EXPECT_EQ(most, testing::is_10() ? 65536u : 32768u);
  for (std::uint32_t size = 512; size <= most; size *= 2) {
    FileImage f = image(size);
    EXPECT_EQ(verdict(f.bytes()), kGood) << size;
  }
  for (const std::uint32_t size :
       {0u, 1u, 256u, 511u, 513u, 768u, 4095u, 4097u, 6144u, 2 * most, 1u << 31, ~0u})
    EXPECT_EQ(with(kAtPageSize, size), kBadSize) << size;
}

TEST(MetaView, EncryptedPagesAreAnotherKind) {
  const Verdict encrypted{MetaKind::encrypted, MDB_VERSION_MISMATCH};
  constexpr std::uint16_t kEncryptedIntegerKeys = 0x2008;
  EXPECT_EQ(with(kAtPageSize + offsetof(DbRecord, flags), kEncryptedIntegerKeys),
            testing::is_10() ? encrypted : kGood);
}

TEST(Layout, OverflowPages) {
  const auto pages = [](std::uint64_t bytes, unsigned shift) {
    return overflow_pages(testing::version(), bytes, shift);
  };
  const std::uint64_t header = testing::is_10() ? 24 : 16;
  EXPECT_EQ(pages(0, 12), 1u);
  EXPECT_EQ(pages(4096 - header, 12), 1u);
  EXPECT_EQ(pages(4096 - header + 1, 12), 2u);
  EXPECT_EQ(pages(8192 - header, 12), 2u);
  EXPECT_EQ(pages(513 - header, 9), 2u);
  EXPECT_EQ(pages(0xffffffff, 9), (0xffffffffull + header - 1) / 512 + 1);
}

TEST(Layout, NamesOfDatabases) {
  const Version v = testing::version();
  EXPECT_EQ(name_key_bytes(v, 3), testing::is_10() ? 4u : 3u);
  for (const std::size_t bytes : {0u, 1u, 7u}) EXPECT_EQ(name_bytes(v, name_key_bytes(v, bytes)), bytes);
  EXPECT_EQ(name_bytes(v, 0), 0u);
}

}  // namespace
}  // namespace lmdbio::format
