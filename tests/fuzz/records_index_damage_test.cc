// The record index of damaged databases of the real LMDB: an index whose every location holds, or an error
// that names a page.
#include <gtest/gtest.h>
#include <lmdb.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "lmdbio/base/unique_fd.h"
#include "tests/fuzz/mutate_file.h"
#include "tests/support/indexed.h"
#include "tests/support/rng.h"

namespace lmdbio::records {
namespace {

namespace fs = std::filesystem;
using test::FileBytes;

struct Counts {
  unsigned good = 0, refused = 0;
};

void index_all(const FileBytes& file, const UniqueFd& fd, Counts& counts) {
  const std::size_t page_size = test::page_size_of(file);
  if (file.size() < 2 * page_size) return;
  ASSERT_EQ(::ftruncate(fd.get(), 0), 0);
  ASSERT_EQ(::pwrite(fd.get(), file.data(), file.size(), 0), static_cast<ssize_t>(file.size()));
  const auto opened = OpenFile::adopt(File::from_fd(fd.get(), File::Take::borrow).value());
  const std::size_t size = file.size() / page_size * page_size;
  const Bytes bytes = std::as_bytes(std::span(file)).first(size);
  const tree::Snapshot s = testing::newest_snapshot(bytes, page_size);
  std::vector<format::DbRecord> records{s.dbs[0], s.dbs[1]};
  for (std::size_t r = 0; r < records.size() && r < 20; ++r) {
    IndexRequest request;
    request.file = opened.get();
    request.page_size = page_size;
    request.file_pages = size / page_size;
    request.record = records[r];
    RecordIndex index;
    IndexProblem problem;
    const Status st = build_index(request, index, problem);
    if (!st.ok()) {
      ASSERT_EQ(st.raw(), MDB_CORRUPTED);
      ASSERT_STRNE(problem.reason, "");
      ++counts.refused;
      continue;
    }
    ++counts.good;
    ASSERT_TRUE(index.consistent(request.file_pages, page_size));
    for (std::uint64_t i = 0; i < index.records(); ++i) {
      const RecordLocation at = index.location(i);
      format::PageView leaf, dups;
      ASSERT_TRUE(format::PageView::open(format::Version::v09, bytes.data() + at.leaf * page_size, page_size,
                                         format::Pgno{at.leaf}, leaf));
      if (at.dup_leaf != 0) {
        ASSERT_TRUE(format::PageView::open(format::Version::v09, bytes.data() + at.dup_leaf * page_size,
                                           page_size, format::Pgno{at.dup_leaf}, dups));
      }
      Bytes key, value;
      ASSERT_TRUE(extract_record(at, leaf, at.dup_leaf != 0 ? &dups : nullptr, key, value).ok()) << i;
      if (r == 1 && value.size() == sizeof(format::DbRecord))
        records.push_back(load<format::DbRecord>(value.data()));  // perhaps a named database
    }
  }
}

TEST(IndexOfDamagedFiles, HoldsOrIsRefused) {
  const UniqueFd fd(::memfd_create("damaged", MFD_CLOEXEC));
  ASSERT_TRUE(fd);
  std::vector<fs::path> corpus;
  for (const auto& e : fs::directory_iterator(LMDBIO_SHIM_CORPUS)) corpus.push_back(e.path());
  std::sort(corpus.begin(), corpus.end());
  ASSERT_FALSE(corpus.empty());
  Counts whole, damaged;
  test::Rng rng(17);
  for (const fs::path& path : corpus) {
    SCOPED_TRACE(path.filename().string());
    std::ifstream in(path, std::ios::binary);
    const FileBytes good{std::istreambuf_iterator<char>(in), {}};
    index_all(good, fd, whole);
    for (int round = 0; round < 60 && !::testing::Test::HasFatalFailure(); ++round) {
      FileBytes bad = good;
      test::mutate_file(bad, rng, std::size_t{1} << 20);
      index_all(bad, fd, damaged);
    }
    if (::testing::Test::HasFatalFailure()) return;
  }
  std::printf("whole: %u indexes, %u refused; damaged: %u and %u\n", whole.good, whole.refused, damaged.good,
              damaged.refused);
  EXPECT_GT(damaged.refused, 100u);
  EXPECT_GT(damaged.good, 100u);
}

}  // namespace
}  // namespace lmdbio::records
