// Models one file in the page cache of one node: which pages the kernel reads when processes touch their
// mappings.
//
// The model follows Linux 6.18 (mm/filemap.c, mm/readahead.c, do_fault_around in mm/memory.c).  It assumes
// pages of 4 KiB, a file system without large folios, and no madvise(2).
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

/// Holds one byte of flags for each page of a large file.  Blocks of pages without flags take no memory.
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

/// A sparse set of pages of a large file.
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

/// What depends on the version of the kernel.
struct Kernel {
  /// Wait queues of a node.  The kernel wakes all processes that wait for pages of the same queue.  0: it
  /// wakes only those that wait for the page itself.
  unsigned wait_queues = 0;
  /// Pages that a fault maps if they are resident: fault_around_bytes.  At least 1.
  unsigned fault_around_pages = 16;
};

/// A page cache of limited size.  When it is nearly full, it evicts pages in the order in which they arrived.
/// A page that arrived or was used since its last check stays for another turn, about as in mm/vmscan.c.  One
/// thread.
class PageCache {
 public:
  using Page = std::uint64_t;
  static constexpr std::size_t kPageBytes = 4096;

  /// `read` starts a request for `count` pages; call arrived() when the request is done.  `read_ahead_pages`
  /// is the file system's read_ahead_kb in pages, at least 1.  `room` is the size of the cache in pages; it
  /// is raised to 4 * `read_ahead_pages` if it is smaller.
  PageCache(Page pages, unsigned read_ahead_pages, std::function<void(Page first, Page count)> read,
            Page room = ~Page{0}, Kernel kernel = {});
  PageCache(const PageCache&) = delete;
  PageCache& operator=(const PageCache&) = delete;

  Page pages() const noexcept { return states_.pages(); }
  bool is_there(Page page) const { return (states_[page] & kThere) != 0; }
  bool is_being_read(Page page) const { return (states_[page] & kBeingRead) != 0; }
  /// Returns the number of resident pages.
  Page pages_there() const noexcept { return there_; }
  void arrived(Page first, Page count);
  /// Returns the number of requests that were started.
  std::uint64_t requests() const noexcept { return requests_; }
  /// Calls `what` once, when the kernel wakes a process that waits for this page: when the page arrives, or
  /// another page of the same wait queue.  Those that began to wait first are called first.  Call it only
  /// while the page is being read.
  void when_woken(Page page, std::function<void()> what) {
    waiting_[queue_of(page)].push_back(std::move(what));
  }

 private:
  friend class MappedFile;
  static constexpr unsigned char kBeingRead = 1, kThere = 2, kMarked = 4, kUsed = 8;

  bool is_absent(Page page) const { return (states_[page] & (kBeingRead | kThere)) == 0; }
  bool is_marked(Page page) const { return (states_[page] & kMarked) != 0; }
  void unmark(Page page) { states_.clear(page, kMarked); }
  Page queue_of(Page page) const noexcept {
    return kernel_.wait_queues == 0 ? page : page % kernel_.wait_queues;
  }
  void read(Page first, Page count);
  void look_at_next();
  void use(Page page) { states_.set(page, kUsed); }
  void put_last(Page first, Page count);
  void make_room();
  /// Reads the absent pages of a range, with one request for each run of adjacent ones.  Marks the page that
  /// is `async` pages before the end of the range.  The first use of this page starts the next read-ahead.
  void read_ahead(Page first, Page count, Page async);
  /// Returns the first absent page of `most` pages from `first` on, or the page after them if none is absent.
  Page next_miss(Page first, Page most) const;

  const Page read_ahead_pages_;
  const std::function<void(Page, Page)> read_;
  const Page room_;
  PageStates states_;
  const Kernel kernel_;
  std::unordered_map<Page, std::vector<std::function<void()>>> waiting_;  ///< by page, or by wait queue
  std::uint64_t requests_ = 0;
  struct Run {
    Page first, count;
  };
  std::deque<Run> order_;  ///< resident pages; the first is the next to be checked
  Page there_ = 0;
  std::vector<MappedFile*> files_;
};

/// The file as one process has opened and mapped it.  The cache must outlive this object.
class MappedFile {
 public:
  using Page = PageCache::Page;

  explicit MappedFile(PageCache& cache) : cache_(cache) { cache_.files_.push_back(this); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() { std::erase(cache_.files_, this); }

  /// The process reads from its mapping.  Returns false if the page is not resident.  The caller then waits
  /// with PageCache::when_woken() if the page is being read, and calls touch() again.
  bool touch(Page page);
  /// The process reads the page with pread(2).  Returns false as touch() does.
  bool read(Page page);

  /// Returns whether the process can read the page without a fault.  If so, marks the page as used.
  bool use_mapped(Page page) {
    if (!mapped_.contains(page)) return false;
    cache_.use(page);
    return true;
  }

  std::uint64_t faults() const noexcept { return faults_; }
  /// Returns the number of faults whose page was not resident.
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
