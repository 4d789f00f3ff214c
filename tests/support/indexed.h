// A database file and its databases, for tests of the record index.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/base/mapping.h"
#include "lmdbio/format/meta_view.h"
#include "lmdbio/io/file.h"
#include "lmdbio/records/build_index.h"
#include "lmdbio/tree/snapshot.h"
#include "tests/support/format_version.h"

namespace lmdbio::testing {

/// The newest meta's snapshot, as a file that nobody writes has it.
inline tree::Snapshot newest_snapshot(Bytes file, std::size_t page_size, format::Version v = version()) {
  tree::Snapshot s;
  for (std::size_t i = 0; i < 2; ++i) {
    const auto m = load<format::MetaRecord>(file, i * page_size + format::page_header(v));
    if (i != 0 && m.txnid <= s.txnid) continue;
    s.txnid = m.txnid;
    s.last_pg = m.last_pg;
    s.dbs[0] = m.dbs[0];
    s.dbs[1] = m.dbs[1];
  }
  return s;
}

/// A file, open and mapped.
class IndexedFile {
 public:
  explicit IndexedFile(const std::string& path, format::Version v = testing::version())
      : version_(v), file_(OpenFile::adopt(File::open(path.c_str(), File::Mode::buffered).value())) {
    const std::uint64_t size = file_->buffered().size().value();
    if (size == 0) return;
    map_ = Mapping::map_file(file_->buffered().fd(), size, 4096).value();
    const auto m = load<format::MetaRecord>(map_.data() + format::page_header(v));
    page_size_ = format::page_size(m);
    pages_ = size / page_size_;
    snapshot_ = newest_snapshot({map_.data(), size}, page_size_, v);
  }
  const OpenFile& file() const { return *file_; }
  std::size_t page_size() const { return page_size_; }
  std::uint64_t pages() const { return pages_; }
  const tree::Snapshot& snapshot() const { return snapshot_; }
  const std::byte* page(std::uint64_t p) const { return map_.data() + p * page_size_; }

  records::IndexRequest request(const format::DbRecord& record) const {
    records::IndexRequest r;
    r.file = file_.get();
    r.file_pages = pages_;
    r.page_size = page_size_;
    r.version = version_;
    r.record = record;
    return r;
  }
  /// Key and value of a location; nothing if the pages do not hold it.
  std::optional<std::pair<std::string, std::string>> record(const records::RecordLocation& at) const {
    format::PageView leaf, dups;
    if (!format::PageView::open(version_, page(at.leaf), page_size_, format::Pgno{at.leaf}, leaf)) return {};
    if (at.dup_leaf != 0 &&
        !format::PageView::open(version_, page(at.dup_leaf), page_size_, format::Pgno{at.dup_leaf}, dups))
      return {};
    Bytes key, value;
    if (!records::extract_record(at, leaf, at.dup_leaf != 0 ? &dups : nullptr, key, value).ok()) return {};
    if (at.overflow != 0) value = {page(at.overflow) + format::page_header(version_), at.value_bytes};
    return std::pair(text(key), text(value));
  }
  static std::string text(Bytes b) { return {reinterpret_cast<const char*>(b.data()), b.size()}; }

 private:
  const format::Version version_;
  std::shared_ptr<const OpenFile> file_;
  Mapping map_;
  std::size_t page_size_ = 4096;
  std::uint64_t pages_ = 0;
  tree::Snapshot snapshot_;
};

/// An index of `record`; fails the test if there is none.
inline records::RecordIndex built_index(const records::IndexRequest& request) {
  records::RecordIndex index;
  records::IndexProblem problem;
  const Status st = records::build_index(request, index, problem);
  EXPECT_EQ(st.raw(), 0) << "page " << problem.page << ": " << problem.reason;
  return index;
}

}  // namespace lmdbio::testing
