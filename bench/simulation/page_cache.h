// A file in the page cache of one node, and what the kernel reads of it when processes touch pages of their
// mappings.
//
// It follows Linux 6.18 (mm/filemap.c, mm/readahead.c, do_fault_around in mm/memory.c), where pages have
// 4 KiB, the file system has no large folios, and nobody has given advice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

namespace lmdbio::bench {

/// Whatever has been read stays: the node's memory is larger than the file.  One thread.
class PageCache {
 public:
  using Page = std::uint64_t;
  static constexpr std::size_t kPageBytes = 4096;

  /// `read` starts a request for `count` pages; when it is done, arrived() is to be called.
  /// `read_ahead_pages`: of the file system, at least 1 (read_ahead_kb).
  PageCache(Page pages, unsigned read_ahead_pages, std::function<void(Page first, Page count)> read);
  PageCache(const PageCache&) = delete;
  PageCache& operator=(const PageCache&) = delete;

  Page pages() const noexcept { return states_.size(); }
  bool is_there(Page page) const { return (states_[page] & kThere) != 0; }
  void arrived(Page first, Page count);
  /// Calls `what` once, when the page arrives, with the number of those that were called for it before.  It
  /// is being read.
  void when_there(Page page, std::function<void(std::size_t)> what) {
    waiting_[page].push_back(std::move(what));
  }

 private:
  friend class MappedFile;
  static constexpr unsigned char kBeingRead = 1, kThere = 2, kMarked = 4;

  bool is_absent(Page page) const { return (states_[page] & (kBeingRead | kThere)) == 0; }
  bool is_marked(Page page) const { return (states_[page] & kMarked) != 0; }
  void unmark(Page page) { states_[page] &= static_cast<unsigned char>(~kMarked); }
  void read(Page first, Page count);
  /// Absent pages of these, one request for those that follow each other.  The page from which `async`
  /// pages are left gets the mark that starts the next read-ahead.
  void read_ahead(Page first, Page count, Page async);
  /// The first page from `first` on that is absent, of `most`; else the one behind these.
  Page next_miss(Page first, Page most) const;

  const Page read_ahead_pages_;
  const std::function<void(Page, Page)> read_;
  std::vector<unsigned char> states_;
  std::unordered_map<Page, std::vector<std::function<void(std::size_t)>>> waiting_;
};

/// The file as one process has opened and mapped it.  The cache outlives it.
class MappedFile {
 public:
  using Page = PageCache::Page;

  explicit MappedFile(PageCache& cache) : cache_(cache), mapped_(cache.pages()) {}

  /// The process reads from its mapping.  False: it waits until the page is there (PageCache::when_there),
  /// and touches it again.
  bool touch(Page page);
  /// pread of a page, likewise.
  bool read(Page page);

  /// A touch of it takes no fault.
  bool is_mapped(Page page) const { return mapped_[page]; }

  std::uint64_t faults() const noexcept { return faults_; }
  /// Of these, those that waited.
  std::uint64_t major_faults() const noexcept { return major_faults_; }

 private:
  static constexpr Page kNone = ~Page{0};

  bool map_around(Page page);
  void read_around(Page page);
  void read_ahead_again(Page page);
  Page next_size(Page size) const noexcept;

  PageCache& cache_;
  std::vector<bool> mapped_;
  Page waits_for_ = kNone;
  // file_ra_state
  Page start_ = 0, size_ = 0, async_ = 0;
  std::uint64_t faults_ = 0, major_faults_ = 0;
};

}  // namespace lmdbio::bench
