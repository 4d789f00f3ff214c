// Reads of many single pages of a file in the order in which they lie there: neighbours in one request, small
// gaps read over, many requests at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lmdbio/base/mapping.h"
#include "lmdbio/io/read_queue.h"
#include "lmdbio/records/build_index.h"

namespace lmdbio::records {

/// A wanted page, and the caller's own number for it.
struct WantedPage {
  std::uint64_t page = 0;
  std::uint64_t index = 0;
};

/// One thread at a time; different ones are independent.
class PageReads {
 public:
  /// `request` outlives it; its pages and sizes are good.
  /// `needed`: it makes do with one buffer; else prepare() fails where there is no memory for some.
  explicit PageReads(const IndexRequest& request, bool needed = true) noexcept
      : request_(request), needed_(needed) {}

  /// An engine and buffers that suit these pages: as prepare() was left if they do already.  `wanted` is
  /// sorted by page, all in the file, not empty.
  Status prepare(std::span<const WantedPage> wanted) noexcept;

  /// Calls take(wanted, bytes) -> bool for each page as it comes, in any order; the same page may be wanted
  /// more than once.  tick() -> bool before each wait.  False of either ends it: ECANCELED, and the caller
  /// knows why.  `wanted` as prepare() had them.  What take() throws goes through; then nothing is read any
  /// more.
  template <class Take, class Tick>
  Status read(std::span<const WantedPage> wanted, Take&& take, Tick&& tick);

  bool direct() const noexcept { return queue_ != nullptr && queue_->direct(); }
  /// All that was read so far.
  IndexReads reads() const noexcept;

 private:
  struct Slot {
    ReadGroup group;
    std::size_t begin = 0, end = 0;  ///< of the wanted pages
    std::byte* at = nullptr;         ///< the first page's bytes
    std::byte* buffer = nullptr;
    bool busy = false;
  };
  /// Most bytes of a request, and of what is read for nothing between two pages of one.
  static constexpr std::size_t kRequest = 256 << 10, kGap = 16 << 10;

  bool in_page_cache(std::span<const WantedPage> wanted) noexcept;
  bool samples_are_cached(std::span<const WantedPage> wanted) noexcept;
  Status choose(std::span<const WantedPage> wanted) noexcept;
  Status open(bool direct, EngineKind kind, unsigned depth) noexcept;
  /// Page `end` is near enough to the one before it for one request.
  bool joins(std::span<const WantedPage> wanted, std::size_t end) const noexcept {
    return wanted[end].page - wanted[end - 1].page <= kGap / request_.page_size + 1;
  }
  Status start(Slot& slot, std::span<const WantedPage> wanted, std::size_t begin) noexcept;
  /// Reads in flight are waited for, and of no use.
  void drop_all() noexcept;

  const IndexRequest& request_;
  const bool needed_;
  TakenMemory taken_;
  Mapping buffers_;
  std::vector<Slot> slots_;
  std::unique_ptr<ReadQueue> queue_;  ///< goes before what it reads into
  enum class Mode : unsigned char { none, cached, direct, buffered } mode_ = Mode::none;
  IndexReads before_;  ///< of engines that are gone
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
