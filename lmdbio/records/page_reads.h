// Reads many single pages of a file, in file order and with many requests in flight.  One request reads
// neighbouring pages and the small gaps between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lmdbio/base/mapping.h"
#include "lmdbio/gather/queues.h"
#include "lmdbio/records/build_index.h"

namespace lmdbio::records {

/// A page to read, and the caller's own number for it.
struct WantedPage {
  std::uint64_t page = 0;
  std::uint64_t index = 0;
};

/// Reads pages for an index build.  One thread at a time per object; different objects are independent.
class PageReads {
 public:
  /// `request` must outlive this object, and its page counts and sizes must be valid.  `needed`: one buffer
  /// is enough.  If false, prepare() fails if there is no memory for several buffers.
  explicit PageReads(const IndexRequest& request, bool needed = true) noexcept
      : request_(request), needed_(needed) {}

  /// Chooses an engine and buffers for these pages, or keeps the current ones if they are suitable.  `wanted`
  /// must be sorted by page and must not be empty.  All its pages must be in the file.
  Status prepare(std::span<const WantedPage> wanted) noexcept;

  /// Reads the pages that were passed to prepare().  Calls take(wanted, bytes) -> bool for each page when its
  /// read has ended, in any order.  `wanted` may contain a page several times.  Calls tick() -> bool before
  /// each wait.  If take() or tick() returns false, the read ends with ECANCELED.  If take() throws, waits
  /// for all reads in flight, and passes on the exception.
  template <class Take, class Tick>
  Status read(std::span<const WantedPage> wanted, Take&& take, Tick&& tick);

  bool direct() const noexcept { return queue_ != nullptr && queue_->direct(); }
  /// Returns the counts of all reads so far.
  IndexReads reads() const noexcept;

 private:
  struct Slot {
    ReadGroup group;
    std::size_t begin = 0, end = 0;  ///< range of the wanted pages
    std::byte* at = nullptr;         ///< the first page's bytes
    std::byte* buffer = nullptr;
    bool busy = false;
  };
  /// Largest size of a request, and largest gap to read between two pages of a request, in bytes.
  static constexpr std::size_t kRequest = 256 << 10, kGap = 16 << 10;

  bool in_page_cache(std::span<const WantedPage> wanted) noexcept;
  bool samples_are_cached(std::span<const WantedPage> wanted) noexcept;
  Status choose(std::span<const WantedPage> wanted) noexcept;
  Status open(gather::ReadKind kind) noexcept;
  /// Returns true if wanted[end] is near enough to the page before it for one request.
  bool joins(std::span<const WantedPage> wanted, std::size_t end) const noexcept {
    return wanted[end].page - wanted[end - 1].page <= kGap / request_.page_size + 1;
  }
  Status start(Slot& slot, std::span<const WantedPage> wanted, std::size_t begin) noexcept;
  /// Waits for all reads in flight, and drops their results.
  void drop_all() noexcept;

  const IndexRequest& request_;
  const bool needed_;
  TakenMemory taken_;
  Mapping buffers_;
  std::vector<Slot> slots_;
  std::unique_ptr<ReadQueue> queue_;  ///< destroyed before the buffers that it reads into
  gather::ReadKind kind_{};           ///< kind of queue_
  IndexReads before_;                 ///< counts of engines that were closed
};

template <class Take, class Tick>
Status PageReads::read(std::span<const WantedPage> wanted, Take&& take, Tick&& tick) {
  struct Dropper {
    PageReads& reads;
    ~Dropper() { reads.drop_all(); }
  } const dropper{*this};
  std::size_t next = 0, busy = 0;
  while (next < wanted.size() || busy != 0) {
    for (Slot& s : slots_) {
      if (next == wanted.size()) break;
      if (s.busy) continue;
      if (const Status st = start(s, wanted, next); !st.ok()) return st;
      next = s.end;
      ++busy;
    }
    queue_->pump();
    bool any = false;
    for (Slot& s : slots_) {
      if (!s.busy || !s.group.done()) continue;
      any = true;
      if (!s.group.status.ok()) return s.group.status;
      for (std::size_t i = s.begin; i < s.end; ++i) {
        const std::byte* const page = s.at + (wanted[i].page - wanted[s.begin].page) * request_.page_size;
        if (!take(wanted[i], page)) return Status::from_errno(ECANCELED);
      }
      s.busy = false;
      --busy;
    }
    if (!tick()) return Status::from_errno(ECANCELED);
    if (!any) queue_->wait_any();
    if (queue_->forgotten()) return Status::from_errno(ECANCELED);
  }
  return {};
}

}  // namespace lmdbio::records
