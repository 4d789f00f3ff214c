#include "bench/scale/simulation/page_allocator.h"

#include <algorithm>
#include <functional>
#include <iterator>

namespace lmdbio::bench {

namespace {

constexpr std::size_t kPageHeader = 16, kNodeHeader = 8, kPointer = 2, kKey = 8;

/// Returns the bytes of a record with `count` pages: a key, the number of pages, and the page numbers.
std::size_t node_bytes(std::size_t count) { return kNodeHeader + kKey + (count + 1) * sizeof(std::uint64_t); }

}  // namespace

// In mdb.c, head_ is me_pghead, last_read_ is me_pglast, freed_ is mt_free_pgs, and next_ is mt_next_pgno.
PageAllocator::Page PageAllocator::allocate(std::uint64_t pages) {
  const std::size_t more = pages - 1;
  const std::uint64_t oldest = transaction_ - 1;  // mdb_find_oldest without readers
  std::int64_t retries = static_cast<std::int64_t>(pages) * 60;
  std::uint64_t last = last_read_;
  for (;;) {
    if (head_.size() > more) {
      // The list is descending: its end has the smallest numbers.
      for (std::size_t i = head_.size() - 1;; --i) {
        const Page page = head_[i];
        if (head_[i - more] == page + more) {
          head_.erase(head_.begin() + static_cast<std::ptrdiff_t>(i - more),
                      head_.begin() + static_cast<std::ptrdiff_t>(i + 1));
          return page;
        }
        if (i == more) break;
      }
      if (--retries < 0) break;
    }
    if (oldest <= ++last) break;
    const auto record = records_.lower_bound(last);
    if (record == records_.end()) break;
    last = record->first;
    if (oldest <= last) break;
    last_read_ = last;
    has_head_ = true;
    std::vector<Page> merged;
    std::merge(head_.begin(), head_.end(), record->second.begin(), record->second.end(),
               std::back_inserter(merged), std::greater<>());
    head_ = std::move(merged);
  }
  const Page page = next_;
  next_ += pages;
  return page;
}

void PageAllocator::touch_root() {
  if (root_ == kNone || root_is_new_) return;
  const Page page = allocate(1);
  freed_.push_back(root_);
  root_ = page;
  root_is_new_ = true;
}

/// Makes room for the numbers of `count` pages.  They are written later.
void PageAllocator::put(std::uint64_t key, std::size_t count) {
  if (root_ == kNone) {
    root_ = allocate(1);
    root_is_new_ = true;
  } else {
    touch_root();
  }
  records_[key].resize(count);
  const std::size_t largest = ((page_bytes_ - kPageHeader) / 2 & ~std::size_t{1}) - kPointer;
  std::size_t all = 0;
  for (const auto& [id, record] : records_) {
    if (node_bytes(record.size()) > largest) throw NotModelled("a long list of free pages");
    all += node_bytes(record.size()) + kPointer;
  }
  if (all > page_bytes_ - kPageHeader) throw NotModelled("a database of free pages of several pages");
}

void PageAllocator::delete_first() {
  touch_root();
  records_.erase(records_.begin());
  if (!records_.empty()) return;
  freed_.push_back(root_);
  root_ = kNone;
  root_is_new_ = false;
}

void PageAllocator::commit() {
  const auto most_of_page = static_cast<std::ptrdiff_t>((page_bytes_ - kPageHeader) / sizeof(Page) - 1);
  std::uint64_t deleted = 0, key = 0;
  std::size_t saved = 0;
  std::ptrdiff_t room_of_key = 0, room = 0;
  int more = 1;
  if (has_head_) touch_root();
  // Each change of the database of free pages may change the list that is to be saved.
  for (;;) {
    while (deleted < last_read_) {
      deleted = key = records_.begin()->first;
      room = room_of_key = 0;
      delete_first();
    }
    if (saved < freed_.size()) {
      if (saved == 0) touch_root();
      do {
        saved = freed_.size();
        put(transaction_, saved);
      } while (saved < freed_.size());
      std::sort(freed_.begin(), freed_.end(), std::greater<>());
      records_[transaction_] = freed_;
      continue;
    }
    const auto left = static_cast<std::ptrdiff_t>(head_.size());
    if (room >= left) {
      if (room == left || --more < 0) break;
    } else if (room_of_key >= most_of_page && key > 1) {
      --key;
      room_of_key = 0;
    }
    room -= room_of_key;
    room_of_key = left - room;
    if (room_of_key > most_of_page && key > 1) throw NotModelled("a long list of free pages");
    room_of_key = std::max<std::ptrdiff_t>(room_of_key, 0);
    put(key, static_cast<std::size_t>(room_of_key));
    room += room_of_key;
  }
  fill_reserved();
  freed_.clear();
  head_.clear();
  has_head_ = root_is_new_ = false;
  last_read_ = 0;
}

/// Writes the free pages that were read and not used into the records that put() has made room for.
void PageAllocator::fill_reserved() {
  std::size_t left = head_.size();
  for (auto record = records_.begin(); left != 0 && record != records_.end(); ++record) {
    std::vector<Page>& pages = record->second;
    pages.resize(std::min(pages.size(), left));
    left -= pages.size();
    std::copy_n(head_.begin() + static_cast<std::ptrdiff_t>(left), pages.size(), pages.begin());
  }
}

}  // namespace lmdbio::bench
