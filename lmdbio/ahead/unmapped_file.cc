#include "lmdbio/ahead/unmapped_file.h"

#include <lmdb.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <utility>

namespace lmdbio::ahead {

std::uint32_t next_window_number() noexcept {
  static constinit std::atomic<std::uint32_t> last{0};
  std::uint32_t n;
  do n = last.fetch_add(1, std::memory_order_relaxed) + 1;
  while (n == 0);
  return n;
}

UnmappedFile::UnmappedFile(const Origin& origin, format::PageFormat pages, const char* name,
                           std::shared_ptr<window::Window> first,
                           std::shared_ptr<window::WindowFile> first_file)
    : origin_(origin),
      pages_(pages),
      name_(name),
      most_bytes_(first->length()),
      prefetcher_(*window::Prefetcher::existing()) {
  entries_.push_back({std::move(first), std::move(first_file)});
}

UnmappedFile::~UnmappedFile() {
  std::list<Entry> gone;
  gone.splice(gone.end(), entries_, std::next(entries_.begin()), entries_.end());
  close(gone);
}

UnmappedFile::Entry* UnmappedFile::find(std::uint64_t txnid) noexcept {
  for (Entry& e : entries_)
    if (e.txnid == txnid) return &e;
  return nullptr;
}

// Gives the snapshot a window that no transaction reads.  Returns nullptr if there is none.
UnmappedFile::Entry* UnmappedFile::reuse(std::uint64_t txnid, std::uint64_t used_bytes,
                                         std::uint64_t file_bytes) noexcept {
  for (Entry& e : entries_) {
    if (e.readers != 0 || e.window->length() < used_bytes || !prefetcher_.empty(*e.file)) continue;
    e.file->file_bytes.store(std::min(file_bytes, used_bytes), std::memory_order_relaxed);
    e.txnid = txnid;
    e.number = next_window_number();
    return &e;
  }
  return nullptr;
}

// Opens a window for the snapshot, with room to grow if the address space allows it.  Called without the
// lock.
Status UnmappedFile::open_one(std::uint64_t used_bytes, std::list<Entry>& out) {
  constexpr std::uint64_t kRoom = std::uint64_t{1} << 30;
  Result<window::Window> made =
      window::Window::reserve(std::min(most_bytes_, 2 * used_bytes + kRoom), pages_);
  if (!made) made = window::Window::reserve(used_bytes, pages_);
  if (!made) return made.error();
  auto window = std::make_shared<window::Window>(std::move(made).value());
  out.emplace_back();
  Result<std::shared_ptr<window::WindowFile>> file =
      prefetcher_.open(window, origin_, name_.c_str(), used_bytes, 0);
  if (!file) {
    out.clear();
    return file.error();
  }
  out.back().window = std::move(window);
  out.back().file = std::move(file).value();
  return {};
}

// Drops snapshots without readers, except for the latest snapshot: the next transaction most likely reads it.
void UnmappedFile::drop_older(std::list<Entry>& gone) noexcept {
  for (auto e = entries_.begin(); e != entries_.end();) {
    const auto at = e++;
    if (at->readers != 0 || at->txnid == latest_ || at->txnid == kNoSnapshot) continue;
    if (at != entries_.begin()) {
      gone.splice(gone.end(), entries_, at);
    } else if (prefetcher_.empty(*at->file)) {
      at->txnid = kNoSnapshot;
    }
  }
}

// Closes windows and keeps their statistics.  Called without the lock.
void UnmappedFile::close(std::list<Entry>& gone) noexcept {
  for (Entry& e : gone) {
    prefetcher_.close(e.file);
    const std::lock_guard lock(prefetcher_);
    closed_.add(e.file->stats);
  }
  gone.clear();
}

Result<UnmappedFile::Entry*> UnmappedFile::enter(std::uint64_t txnid, std::uint64_t used_bytes,
                                                 std::uint64_t file_bytes) noexcept {
  std::list<Entry> made, gone;
  Entry* entry = nullptr;
  Status st;
  do {
    {
      const std::lock_guard lock(prefetcher_);
      entry = find(txnid);
      if (entry != nullptr) {
        // The reader count changes under the same lock, so no transaction begins between the decision and the
        // drop.  The window's new number tells transactions and cursors that the pages they remember are
        // gone.
        if (entry->readers == 0 && prefetcher_.memory().over_limit() && prefetcher_.empty(*entry->file))
          entry->number = next_window_number();
      } else {
        entries_.splice(entries_.end(), made);
        entry = reuse(txnid, used_bytes, file_bytes);
        if (entry != nullptr) latest_ = txnid;
      }
      if (entry != nullptr) {
        ++entry->readers;
        drop_older(gone);
      } else if (entries_.size() >= kMostWindows) {
        st = Status::from_mdb(MDB_READERS_FULL);
      }
    }
    if (entry != nullptr || !st.ok()) break;
    try {
      st = open_one(used_bytes, made);
    } catch (...) {
      st = Status::from_errno(ENOMEM);
    }
  } while (st.ok());
  close(made);  // another thread was faster
  close(gone);
  if (entry == nullptr) return st;
  return entry;
}

void UnmappedFile::leave(Entry* entry) noexcept {
  std::list<Entry> gone;
  {
    const std::lock_guard lock(prefetcher_);
    if (--entry->readers == 0) drop_older(gone);
  }
  close(gone);
}

std::shared_ptr<window::WindowFile> UnmappedFile::file_at(const std::byte* base) const noexcept {
  const std::lock_guard lock(prefetcher_);
  for (const Entry& e : entries_)
    if (e.window->base() == base) return e.file;
  return nullptr;
}

window::FileStats UnmappedFile::stats() const noexcept {
  const std::lock_guard lock(prefetcher_);
  window::FileStats sum = closed_;
  for (const Entry& e : entries_) sum.add(e.file->stats);
  return sum;
}

}  // namespace lmdbio::ahead
