// A file in the page cache of one node, and what the kernel reads of it when processes touch pages of their
// mappings.
//
// It follows Linux 6.18 (mm/filemap.c, mm/readahead.c, do_fault_around in mm/memory.c), where pages have
// 4 KiB, the file system has no large folios, and nobody has given advice.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

namespace lmdbio::bench {

/// A number for each page of a large file, most of which are 0 and take no memory.
class PageStates {
 public:
  using Page = std::uint64_t;
  explicit PageStates(Page pages) : pages_(pages), blocks_((pages + kBlock - 1) / kBlock) {}
  Page pages() const noexcept { return pages_; }
  unsigned char operator[](Page page) const {
    const auto& block = blocks_[page / kBlock];
    return block == nullptr ? 0 : (*block)[page % kBlock];
  }
  void set(Page page, unsigned bits) { state(page) |= static_cast<unsigned char>(bits); }
  void clear(Page page, unsigned bits) { state(page) &= static_cast<unsigned char>(~bits); }

 private:
  static constexpr std::size_t kBlock = 256;
  unsigned char& state(Page page) {
    auto& block = blocks_[page / kBlock];
    if (block == nullptr) block = std::make_unique<std::array<unsigned char, kBlock>>();
    return (*block)[page % kBlock];
  }
  const Page pages_;
  std::vector<std::unique_ptr<std::array<unsigned char, kBlock>>> blocks_;
};

/// Pages of a large file, few of them, in groups.
class PageSet {
 public:
  using Page = std::uint64_t;
  bool contains(Page page) const {
    const auto found = words_.find(page / kBits);
    return found != words_.end() && (found->second >> page % kBits & 1) != 0;
  }
  void insert(Page page) { words_[page / kBits] |= std::uint64_t{1} << page % kBits; }
  void erase(Page page) {
    const auto found = words_.find(page / kBits);
    if (found == words_.end()) return;
    found->second &= ~(std::uint64_t{1} << page % kBits);
    if (found->second == 0) words_.erase(found);
  }

 private:
  static constexpr unsigned kBits = 64;
  std::unordered_map<Page, std::uint64_t> words_;
};

class MappedFile;

/// Has room for so many pages.  When it is nearly full, pages go in the order in which they came; one that
/// came, or was used, since that was last looked at stays for another turn, about as in mm/vmscan.c.  One
/// thread.
class PageCache {
 public:
  using Page = std::uint64_t;
  static constexpr std::size_t kPageBytes = 4096;

  /// `read` starts a request for `count` pages; when it is done, arrived() is to be called.
  /// `read_ahead_pages`: of the file system, at least 1 (read_ahead_kb).  `room`: four times
  /// as much, at least.
  PageCache(Page pages, unsigned read_ahead_pages, std::function<void(Page first, Page count)> read,
            Page room = ~Page{0});
  PageCache(const PageCache&) = delete;
  PageCache& operator=(const PageCache&) = delete;

  Page pages() const noexcept { return states_.pages(); }
  bool is_there(Page page) const { return (states_[page] & kThere) != 0; }
  bool is_being_read(Page page) const { return (states_[page] & kBeingRead) != 0; }
  /// Those that are there.
  Page pages_there() const noexcept { return there_; }
  void arrived(Page first, Page count);
  /// Calls `what` once, when the page arrives, with the number of those that were called for it before.  It
  /// is being read.
  void when_there(Page page, std::function<void(std::size_t)> what) {
    waiting_[page].push_back(std::move(what));
  }

 private:
  friend class MappedFile;
  static constexpr unsigned char kBeingRead = 1, kThere = 2, kMarked = 4, kUsed = 8;

  bool is_absent(Page page) const { return (states_[page] & (kBeingRead | kThere)) == 0; }
  bool is_marked(Page page) const { return (states_[page] & kMarked) != 0; }
  void unmark(Page page) { states_.clear(page, kMarked); }
  void read(Page first, Page count);
  void look_at_next();
  void use(Page page) { states_.set(page, kUsed); }
  void put_last(Page first, Page count);
  void make_room();
  /// Absent pages of these, one request for those that follow each other.  The page from which `async`
  /// pages are left gets the mark that starts the next read-ahead.
  void read_ahead(Page first, Page count, Page async);
  /// The first page from `first` on that is absent, of `most`; else the one behind these.
  Page next_miss(Page first, Page most) const;

  const Page read_ahead_pages_;
  const std::function<void(Page, Page)> read_;
  const Page room_;
  PageStates states_;
  std::unordered_map<Page, std::vector<std::function<void(std::size_t)>>> waiting_;
  struct Run {
    Page first, count;
  };
  std::deque<Run> order_;  ///< of those that are there, the next to go first
  Page there_ = 0;
  std::vector<MappedFile*> files_;
};

/// The file as one process has opened and mapped it.  The cache outlives it.
class MappedFile {
 public:
  using Page = PageCache::Page;

  explicit MappedFile(PageCache& cache) : cache_(cache) { cache_.files_.push_back(this); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() { std::erase(cache_.files_, this); }

  /// The process reads from its mapping.  False: it waits until the page is there (PageCache::when_there),
  /// unless it is not being read any more, and touches it again.
  bool touch(Page page);
  /// pread of a page, likewise.
  bool read(Page page);

  /// Whether the process reads from it without a fault.
  bool use_mapped(Page page) {
    if (!mapped_.contains(page)) return false;
    cache_.use(page);
    return true;
  }

  std::uint64_t faults() const noexcept { return faults_; }
  /// Of these, those that waited.
  std::uint64_t major_faults() const noexcept { return major_faults_; }

 private:
  friend class PageCache;
  static constexpr Page kNone = ~Page{0};

  bool map_around(Page page);
  void read_around(Page page);
  void read_ahead_again(Page page);
  Page next_size(Page size) const noexcept;

  PageCache& cache_;
  PageSet mapped_;
  Page waits_for_ = kNone;
  // file_ra_state
  Page start_ = 0, size_ = 0, async_ = 0;
  std::uint64_t faults_ = 0, major_faults_ = 0;
};

}  // namespace lmdbio::bench
