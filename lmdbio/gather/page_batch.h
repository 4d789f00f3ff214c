// Reads many pages into the page cache, for code that reads them through a mapping of the file afterwards.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lmdbio/base/mapping.h"
#include "lmdbio/io/file.h"
#include "lmdbio/io/read_queue.h"
#include "lmdbio/io/residency.h"

namespace lmdbio::gather {

/// Adjacent pages of a file.
struct PageRun {
  std::uint64_t first, pages;
};

/// Requests the pages that a walk over a whole tree needs soon, many at once.  It is only advice: pages that
/// were not read, because a read failed or memory is short, are read by page faults.  One thread.
class PageBatches {
 public:
  /// `file`: opened for reads through the page cache; null: nothing is read.  `mapped`: the address of page 0
  /// in a mapping of `pages` pages of `page_size` bytes.  `cancelled` ends waits once it is set; may be null.
  /// All of them must outlive this object.  `programs_fd`: the program's descriptor of a kept file, or -1;
  /// see Residency.
  PageBatches(const File* file, const std::byte* mapped, std::uint64_t pages, std::size_t page_size,
              const std::atomic<bool>* cancelled, int programs_fd = -1) noexcept;
  ~PageBatches();

  /// Returns false if nothing is read, or not any more.
  bool on() const noexcept { return on_; }
  void turn_off() noexcept { on_ = false; }
  /// Requests the pages that are not resident, adjacent ones in one request.  `runs` may be in any order,
  /// repeated, or outside the file; the function sorts it.  `group` must not move until it is done.  Returns
  /// the number of requests, including those that were not needed.
  std::size_t ask(ReadGroup& group, std::vector<PageRun>& runs) noexcept;
  /// Waits for the group.  Returns on().
  bool wait(ReadGroup& group) noexcept;
  /// Removes the pending requests of the group, and waits for those in flight.
  void drop(ReadGroup& group) noexcept;
  /// Submits pending requests and takes finished ones.  Never waits.
  void pump() noexcept {
    if (queue_ != nullptr) queue_->pump();
  }

 private:
  bool open() noexcept;
  bool is_there(const PageRun& run) const noexcept;

  const File* const file_;
  const std::byte* const mapped_;
  const std::uint64_t pages_;
  const std::size_t page_size_;
  const std::atomic<bool>* const cancelled_;
  bool on_;
  Residency residency_;
  Mapping scratch_;  ///< target of reads; its contents are not used
  std::unique_ptr<ReadQueue> queue_;
};

}  // namespace lmdbio::gather
