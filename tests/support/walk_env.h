// An environment over a file of one leaf with large values, for tests of what follows a walk.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "lmdbio/ahead/planner.h"
#include "lmdbio/tree/env.h"
#include "lmdbio/tree/txn.h"
#include "lmdbio/window/prefetcher.h"
#include "tests/support/file_image.h"
#include "tests/support/format_version.h"
#include "tests/support/temp_file.h"

namespace lmdbio::testing {

/// Values of whole pages, one after the other behind the leaf; key number i has value number i.
class WalkEnv {
 public:
  static constexpr std::size_t kPage = 4096;
  static std::string key_of(unsigned i) {
    char text[16];
    (void)std::snprintf(text, sizeof text, "%07u", i);
    return text;
  }

  WalkEnv(unsigned values, std::uint64_t pages_each, bool no_readahead = false)
      : pages_each_(pages_each), image_(image(values, pages_each)), file_(image_.bytes()) {
    env_ = std::move(
        tree::Env::open(
            file_.fd(),
            {pages_of(kPage), image_.bytes().size(), 1, no_readahead, {}, ~std::uint64_t{0} - 1, "walk.mdb"})
            .value());
    txn_ = std::make_unique<tree::Txn>(*env_);
    const tree::MetaSource source(env_->metas().records);
    std::uint64_t txnid = 0;
    EXPECT_TRUE(source.renew(txnid).ok());
    EXPECT_TRUE(txn_->begin(txnid, source).ok());
  }

  tree::Env& env() { return *env_; }
  tree::Txn& txn() { return *txn_; }
  int fd() const { return file_.fd(); }
  const char* path() const { return file_.path(); }
  const window::WindowView& view() const { return txn_->view(); }
  std::uint64_t bytes() const { return image_.bytes().size(); }
  /// The pages of value `i`.
  ahead::PageRun value(unsigned i) const { return {kFirstValue + i * pages_each_, pages_each_}; }
  ahead::PageRun leaf_page() const { return {kLeaf, 1}; }
  format::PageView leaf() const {
    format::PageView page;
    EXPECT_TRUE(format::PageView::open(testing::version(), view().at(format::Pgno{kLeaf}), kPage,
                                       format::Pgno{kLeaf}, page));
    return page;
  }
  /// At value `i`, or at the leaf itself: then it is not known yet.
  ahead::WalkPlace at(unsigned i, std::uint64_t given_bytes = 0) const {
    ahead::WalkPlace p;
    p.leaf = leaf();
    p.index = i;
    p.value_pages = pages_each_;
    p.given_bytes = given_bytes;
    return p;
  }
  ahead::WalkPlace at_leaf(std::uint64_t given_bytes = 0) const {
    ahead::WalkPlace p;
    p.value_pages = pages_each_;
    p.given_bytes = given_bytes;
    return p;
  }
  /// As the program would.
  void read(unsigned i) const {
    const std::byte* const from = view().at(format::Pgno{value(i).first});
    for (std::uint64_t b = 0; b < pages_each_ * kPage; b += kPage)
      (void)*const_cast<const volatile std::byte*>(from + b);
  }
  /// Nothing of the file is in memory, or all of it.
  void drop_page_cache() {
    const window::Window& w = *env_->window();
    (void)::madvise(const_cast<std::byte*>(w.base()), w.length(), MADV_DONTNEED);
    (void)::fdatasync(file_.fd());
    (void)::posix_fadvise(file_.fd(), 0, 0, POSIX_FADV_DONTNEED);
  }
  void fill_page_cache() {
    std::vector<char> all(bytes());
    ASSERT_EQ(::pread(file_.fd(), all.data(), all.size(), 0), static_cast<ssize_t>(all.size()));
  }
  window::FileStats stats() {
    const auto file = env_->file().existing_window_file();
    return file == nullptr ? window::FileStats() : env_->file().stats(*file);
  }

 private:
  // The metas and the leaf are mapped and keep pages beside them in the page cache: the values lie far away.
  static constexpr std::uint64_t kLeaf = 2, kGap = 1024, kFirstValue = kLeaf + 1 + kGap;
  static FileImage image(unsigned values, std::uint64_t pages_each) {
    const std::string value(pages_each * kPage - testing::kPageHeader, 'v');
    FileImage f(kPage);
    std::vector<LeafEntry> entries;
    for (unsigned i = 0; i < values; ++i)
      entries.push_back(
          FileImage::big(key_of(i), kFirstValue + i * pages_each, static_cast<std::uint32_t>(value.size())));
    EXPECT_EQ(f.leaf(entries), kLeaf);
    (void)f.overflow(std::string(kGap * kPage - testing::kPageHeader, 'g'));
    for (unsigned i = 0; i < values; ++i) (void)f.overflow(value);
    format::DbRecord main = FileImage::record(0, 1, kLeaf, values);
    main.overflow_pages = values * pages_each;
    f.metas(main, 7);
    return f;
  }

  const std::uint64_t pages_each_;
  const FileImage image_;
  const TempFile file_;
  std::unique_ptr<tree::Env> env_;
  std::unique_ptr<tree::Txn> txn_;
};

}  // namespace lmdbio::testing
