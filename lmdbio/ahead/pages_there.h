// Provides the pages of a tree from which a plan is made.
#pragma once

#include <cstdint>

#include "lmdbio/ahead/planner.h"
#include "lmdbio/io/time_byte.h"
#include "lmdbio/window/prefetcher.h"

namespace lmdbio::ahead {

/// Provides pages that can be read now: those in resident chunks and those in the page cache.
class PagesThere final : public PageSource {
 public:
  /// `tries`: upper limit on probes of the page cache; each is a system call.
  PagesThere(window::WindowFile& file, const window::WindowView& view, unsigned tries = 8)
      : file_(file), view_(view), tries_(tries) {}
  bool get(std::uint64_t page, format::PageView& out) override {
    if (page >= view_.pages() || page < format::kMetaPages) return false;
    const std::uint64_t at = page << view_.shift();
    if (!file_.resident_now(file_.chunk_at(at))) {
      if (tries_ == 0 || !file_.has_page_cache()) return false;
      --tries_;
      if (window::Prefetcher::existing()->is_reading(file_, {at, view_.page_size()})) return false;
      if (file_.residency().share(at, view_.page_size(), view_.base()).value_or(0) < 1) return false;
      // After a failed read, a page in the page cache may lack its bytes.  read(2) reports this as an
      // error.
      if (file_.read_failed.load(std::memory_order_relaxed) && !time_byte(file_.buffered(), at)) return false;
    }
    const std::byte* const bytes = view_.at(format::Pgno{page});
    return bytes != nullptr &&
           format::PageView::open(view_.version(), bytes, view_.page_size(), format::Pgno{page}, out);
  }

 private:
  window::WindowFile& file_;
  const window::WindowView& view_;
  unsigned tries_;
};

}  // namespace lmdbio::ahead
