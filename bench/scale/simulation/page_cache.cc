#include "bench/scale/simulation/page_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace lmdbio::bench {

namespace {

/// Read-ahead ends at a multiple of this number of pages.
constexpr PageCache::Page kEndsAt = 4;
/// One of every kSpare pages is kept free.
constexpr PageCache::Page kSpare = 16;
/// The cache has room for at least this number of read-ahead windows, so that a page that was read is still
/// resident when it is touched.
constexpr PageCache::Page kLeastWindows = 4;

}  // namespace

PageCache::PageCache(Page pages, unsigned read_ahead_pages, std::function<void(Page, Page)> read, Page room,
                     Kernel kernel)
    : read_ahead_pages_(read_ahead_pages),
      read_(std::move(read)),
      room_(std::max(room, kLeastWindows * read_ahead_pages)),
      states_(pages),
      kernel_(kernel) {}

void PageCache::arrived(Page first, Page count) {
  std::vector<std::function<void()>> woken;
  for (Page p = first; p < first + count; ++p) {
    states_.clear(p, kBeingRead);
    states_.set(p, kThere | kUsed);
    if (const auto found = waiting_.find(queue_of(p)); found != waiting_.end()) {
      std::move(found->second.begin(), found->second.end(), std::back_inserter(woken));
      waiting_.erase(found);
    }
  }
  put_last(first, count);
  there_ += count;
  make_room();
  for (const auto& wake : woken) wake();
}

// shrink_folio_list, with one list instead of two.  Checks all pages once before it evicts one that was used.
void PageCache::make_room() {
  for (Page n = there_; n != 0 && there_ > room_ - room_ / kSpare; --n) look_at_next();
  while (there_ > room_) look_at_next();
}

void PageCache::look_at_next() {
  Run& next = order_.front();
  const Page page = next.first++;
  if (--next.count == 0) order_.pop_front();
  if ((states_[page] & kUsed) != 0) {
    states_.clear(page, kUsed);
    return put_last(page, 1);
  }
  states_.clear(page, ~0u);
  --there_;
  for (MappedFile* const file : files_) file->mapped_.erase(page);
}

void PageCache::put_last(Page first, Page count) {
  if (!order_.empty() && order_.back().first + order_.back().count == first)
    order_.back().count += count;
  else
    order_.push_back({first, count});
}

void PageCache::read(Page first, Page count) {
  for (Page p = first; p < first + count; ++p) states_.set(p, kBeingRead);
  ++requests_;
  read_(first, count);
}

// page_cache_ra_unbounded
void PageCache::read_ahead(Page first, Page count, Page async) {
  if (first >= pages()) return;
  count = std::min(count, pages() - first);
  const Page mark = async <= count ? first + count - async : pages();
  Page begin = first;
  const auto read_until = [&](Page end) {
    if (end != begin) read(begin, end - begin);
  };
  for (Page p = first; p < first + count; ++p) {
    if (!is_absent(p)) {
      read_until(p);
      begin = p + 1;
    } else if (p == mark) {
      states_.set(p, kMarked);
    }
  }
  read_until(first + count);
}

PageCache::Page PageCache::next_miss(Page first, Page most) const {
  Page p = first;
  while (p < first + most && p < pages() && !is_absent(p)) ++p;
  return p;
}

// handle_mm_fault, as for a fault on a page of a shared file mapping.
bool MappedFile::touch(Page page) {
  if (use_mapped(page)) return true;
  if (std::exchange(waits_for_, kNone) == page && !cache_.is_absent(page)) {
    // The kernel handles the fault again once the page was read.  This second attempt reads nothing.
    if (!cache_.is_there(page)) {
      waits_for_ = page;
      return false;
    }
    map_around(page);
    mapped_.insert(page);
    cache_.use(page);
    return true;
  }
  ++faults_;
  if (map_around(page)) return true;
  if (cache_.is_absent(page))
    read_around(page);
  else if (cache_.is_marked(page))
    read_ahead_again(page);
  if (map_around(page)) return true;
  ++major_faults_;
  waits_for_ = page;
  return false;
}

// filemap_map_pages.  Returns whether `page` is mapped.  A page with the mark of a read-ahead is not mapped.
// All mapped pages count as used, as on x86-64.
bool MappedFile::map_around(Page page) {
  const Page around = cache_.kernel_.fault_around_pages, first = page / around * around;
  const Page end = std::min(first + around, cache_.pages());
  for (Page p = first; p < end; ++p)
    if (cache_.is_there(p) && !cache_.is_marked(p) && !mapped_.contains(p)) {
      mapped_.insert(p);
      cache_.use(p);
    }
  return mapped_.contains(page);
}

// do_sync_mmap_readahead.  This model always reads around.  The kernel stops reading around when there were a
// hundred more misses than hits.  But the pages that a miss reads are then mapped, which counts as a hit.
void MappedFile::read_around(Page page) {
  const Page most = cache_.read_ahead_pages_;
  start_ = page - std::min(page, most / 2);
  size_ = most;
  async_ = most / 4;
  cache_.read_ahead(start_, size_, async_);
}

// page_cache_async_ra
void MappedFile::read_ahead_again(Page page) {
  cache_.unmark(page);
  const Page most = cache_.read_ahead_pages_;
  if (page == start_ + size_ - async_) {
    start_ += size_;
    size_ = std::max(size_, next_size(size_));
  } else {
    const Page miss = cache_.next_miss(page + 1, most);
    if (miss - page > most) return;
    start_ = miss;
    size_ = next_size(miss - page + most);
  }
  const Page end = (start_ + size_) / kEndsAt * kEndsAt;
  if (end > start_) size_ = end - start_;
  async_ = size_;
  cache_.read_ahead(start_, size_, async_);
}

// get_next_ra_size
MappedFile::Page MappedFile::next_size(Page size) const noexcept {
  const Page most = cache_.read_ahead_pages_;
  if (size < most / 16) return 4 * size;
  return size <= most / 2 ? 2 * size : most;
}

// filemap_read, page_cache_sync_ra
bool MappedFile::read(Page page) {
  if (cache_.is_absent(page)) {
    const Page most = cache_.read_ahead_pages_;
    if (page == 0) {  // get_init_ra_size
      start_ = 0;
      size_ = most >= 32 ? 4 : most >= 4 ? 2 : most;
      async_ = size_ > 1 ? size_ - 1 : size_;
      cache_.read_ahead(start_, size_, async_);
    } else {
      cache_.read(page, 1);
    }
  } else if (cache_.is_marked(page)) {
    read_ahead_again(page);
  }
  if (!cache_.is_there(page)) return false;
  cache_.use(page);
  return true;
}

}  // namespace lmdbio::bench
