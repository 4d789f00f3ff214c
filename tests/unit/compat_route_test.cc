// Which environments are ours: every combination of what decides.
#include <gtest/gtest.h>
#include <lmdb.h>

#include <cstring>

#include "compat/route.h"

namespace lmdbio::compat {
namespace {

TEST(Route, ReadOnlyEnvironmentsOfTheKnownFormatAreOurs) {
  for (std::size_t page = 512; page <= 32768; page *= 2)
    EXPECT_EQ(route({MDB_RDONLY, MDB_RDONLY, page}), nullptr) << page;
  for (std::size_t page = 512; page <= 65536; page *= 2)
    EXPECT_EQ(route({MDB_RDONLY, MDB_RDONLY, {page, format::Version::v10}}), nullptr) << page;
  for (const unsigned flags :
       {unsigned{MDB_NOSUBDIR}, unsigned{MDB_NOTLS}, unsigned{MDB_NOLOCK}, unsigned{MDB_NORDAHEAD},
        unsigned{MDB_NOSYNC}, unsigned{MDB_NOMETASYNC}, unsigned{MDB_MAPASYNC}, unsigned{MDB_NOMEMINIT}})
    EXPECT_EQ(route({MDB_RDONLY | flags, MDB_RDONLY | flags, 4096}), nullptr) << flags;
}

TEST(Route, EachReasonAlone) {
  EXPECT_STREQ(route({0, 0, 4096}), "writable environment");
  EXPECT_STREQ(route({0, MDB_RDONLY, 4096}), "writable environment") << "what the environment says counts";
  EXPECT_STREQ(route({MDB_RDONLY | MDB_FIXEDMAP, MDB_RDONLY, 4096}), "MDB_FIXEDMAP");
  EXPECT_STREQ(route({MDB_RDONLY, MDB_RDONLY | MDB_FIXEDMAP, 4096}), "MDB_FIXEDMAP");
  EXPECT_STREQ(route({MDB_RDONLY | MDB_WRITEMAP, MDB_RDONLY | MDB_WRITEMAP, 4096}), "MDB_WRITEMAP");
  EXPECT_STREQ(route({MDB_RDONLY | kPrevSnapshot, MDB_RDONLY, 4096}), "MDB_PREVSNAPSHOT");
  EXPECT_STREQ(route({MDB_RDONLY | kRemapChunks, MDB_RDONLY, 4096}), "MDB_REMAP_CHUNKS");
  EXPECT_STREQ(route({MDB_RDONLY, MDB_RDONLY, 4096, true, true}), "functions for encryption or checksums");
  EXPECT_STREQ(route({MDB_RDONLY, MDB_RDONLY, 4096, false}), "not a regular file");
  for (const std::size_t page : {0u, 256u, 511u, 32769u, 65536u, 131072u})
    EXPECT_STREQ(route({MDB_RDONLY, MDB_RDONLY, page}), "unsupported page size") << page;
  for (const std::size_t page : {0u, 256u, 65537u, 131072u})
    EXPECT_STREQ(route({MDB_RDONLY, MDB_RDONLY, {page, format::Version::v10}}), "unsupported page size")
        << page;
}

// stock drops MDB_WRITEMAP of a read-only open: the flags given do not count.
TEST(Route, WritemapAsGivenIsNoReason) {
  EXPECT_EQ(route({MDB_RDONLY, MDB_RDONLY | MDB_WRITEMAP, 4096}), nullptr);
}

TEST(Route, FirstReasonIsNamed) {
  EXPECT_STREQ(route({MDB_WRITEMAP | MDB_FIXEDMAP, MDB_FIXEDMAP, 0}), "writable environment");
  EXPECT_STREQ(route({MDB_RDONLY | MDB_WRITEMAP, MDB_FIXEDMAP, 0}), "MDB_FIXEDMAP");
}

}  // namespace
}  // namespace lmdbio::compat
