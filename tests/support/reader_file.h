// A file of records in locations that the test chooses, and a reader of it: no LMDB needed.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lmdbio/io/engine_select.h"
#include "lmdbio/records/reader.h"
#include "tests/support/file_image.h"
#include "tests/support/format_version.h"
#include "tests/support/temp_file.h"

namespace lmdbio::testing {

/// One leaf page with an entry for each value; values lie in runs of their own, `gap` pages apart.
class ReaderFile {
 public:
  static constexpr std::size_t kPage = 4096;
  static std::string key_of(std::uint64_t i) {
    char text[16];
    (void)std::snprintf(text, sizeof text, "%07u", static_cast<unsigned>(i));
    return text;
  }
  std::string value_of(std::uint64_t i) const {
    return std::string(value_bytes_, static_cast<char>('a' + i % 26));
  }

  /// `value_pages`: whole pages; `gaps`: pages in front of each value, the last one's for all that follow.
  ReaderFile(unsigned values, std::uint64_t value_pages, std::vector<std::uint64_t> gaps)
      : value_bytes_(value_pages * kPage - testing::kPageHeader), image_(kPage) {
    std::uint64_t next = kLeaf + 1;
    for (unsigned i = 0; i < values; ++i) {
      next += gaps[std::min<std::size_t>(i, gaps.size() - 1)];
      first_page_.push_back(next);
      next += value_pages;
    }
    std::vector<LeafEntry> entries;
    for (unsigned i = 0; i < values; ++i)
      entries.push_back(FileImage::big(key_of(i), first_page_[i], static_cast<std::uint32_t>(value_bytes_)));
    EXPECT_EQ(image_.leaf(entries), kLeaf);
    for (unsigned i = 0; i < values; ++i) {
      while (image_.pages() < first_page_[i]) (void)image_.overflow("");
      EXPECT_EQ(image_.overflow(value_of(i)), first_page_[i]);
    }
    image_.metas(FileImage::record(0, 1, kLeaf, values), 7);
    file_.append(image_.bytes());
    (void)::fdatasync(file_.fd());
  }

  std::uint64_t leaf() const { return kLeaf; }
  std::uint64_t first_page(std::uint64_t i) const { return first_page_[i]; }
  int fd() const { return file_.fd(); }
  const char* path() const { return file_.path(); }
  std::uint64_t bytes() const { return image_.bytes().size(); }
  /// Another number in the header of a page.
  void damage(std::uint64_t page) const {
    const std::uint64_t wrong = page + 1;
    ASSERT_EQ(::pwrite(file_.fd(), &wrong, sizeof wrong, static_cast<off_t>(page * kPage)), 8);
  }
  void drop_page_cache() const {
    (void)::fdatasync(file_.fd());
    (void)::posix_fadvise(file_.fd(), 0, 0, POSIX_FADV_DONTNEED);
  }
  void fill_page_cache() const {
    std::string all(bytes(), '\0');
    ASSERT_EQ(::pread(file_.fd(), all.data(), all.size(), 0), static_cast<ssize_t>(all.size()));
  }

  records::RecordLocation location(std::uint64_t i) const {
    records::RecordLocation p;
    p.leaf = kLeaf;
    p.slot = static_cast<std::uint32_t>(i);
    p.overflow = first_page_[i];
    p.value_bytes = static_cast<std::uint32_t>(value_bytes_);
    return p;
  }
  records::Source source() const {
    File buffered = File::open(file_.path(), File::Mode::buffered).value();
    records::Source s;
    s.file = OpenFile::adopt(std::move(buffered));
    s.name = s.path = file_.path();
    s.page_size = kPage;
    s.pages = image_.pages();
    s.txnid = 7;
    s.db = FileImage::record(0, 1, kLeaf, first_page_.size());
    s.db.leaf_pages = std::uint64_t{1} << 30;  // so that leaf pages which hold values are not kept
    return s;
  }
  std::unique_ptr<records::RecordLocations> locations() const {
    struct Known final : records::RecordLocations {
      explicit Known(const ReaderFile& of) : of_(of) {}
      std::uint64_t records() const noexcept override { return of_.first_page_.size(); }
      void locations(std::uint64_t first, std::span<records::RecordLocation> out) const noexcept override {
        for (std::size_t i = 0; i < out.size(); ++i) out[i] = of_.location(first + i);
      }
      Status ordinal_of(std::uint64_t, unsigned slot, const format::PageView&,
                        std::uint64_t& out) const override {
        out = slot;
        return {};
      }
      const ReaderFile& of_;
    };
    return std::make_unique<Known>(*this);
  }
  /// The file outlives it.
  std::unique_ptr<records::Reader> reader(std::uint64_t memory, ReadDecision read) const {
    return std::make_unique<records::Reader>(source(), locations(), memory, read);
  }

 private:
  static constexpr std::uint64_t kLeaf = 2;
  const std::size_t value_bytes_;
  FileImage image_;
  std::vector<std::uint64_t> first_page_;
  TempFile file_;
};

}  // namespace lmdbio::testing
