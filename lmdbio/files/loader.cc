#include "lmdbio/files/loader.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

namespace lmdbio::files {

Loader::Loader(std::size_t first, std::size_t end, Size size, Read read)
    : end_(end), size_(std::move(size)), read_(std::move(read)), taken_(first), given_(first) {
  threads_.reserve(kThreads);
  const std::lock_guard lock(mutex_);  // the threads begin when all are counted
  try {
    for (std::size_t i = 0; i < std::min<std::size_t>(kThreads, end - first); ++i)
      threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    if (threads_.empty()) throw;
  }
  working_ = threads_.size();
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  room_.notify_all();
  for (std::thread& t : threads_) t.join();
}

/// Sets the number and the bytes of the items to read next.
void Loader::take(Group& group) const {
  // All threads have something to do until shortly before the end.
  const std::size_t most = std::clamp<std::size_t>((end_ - taken_) / (4 * kThreads), 1, kGroupItems);
  do {
    group.bytes += size_(taken_ + group.items++);
  } while (group.items < most && group.bytes + size_(taken_ + group.items) <= kGroupBytes);
}

void Loader::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    room_.wait(lock, [this] {
      return ends_ || taken_ == end_ || groups_.empty() ||
             (ahead_bytes_ < kAheadBytes && taken_ - given_ < kAheadItems);
    });
    if (ends_ || taken_ == end_) return;
    // References to elements of a deque stay valid while others are added and removed at its ends.
    try {
      groups_.emplace_back();
    } catch (const std::bad_alloc&) {  // the others go on; without any of them, next() fails
      if (--working_ == 0) ready_.notify_one();
      room_.notify_one();
      return;
    }
    Group& group = groups_.back();
    take(group);
    const std::size_t first = taken_;
    taken_ += group.items;
    ahead_bytes_ += group.bytes;
    lock.unlock();
    try {
      group.contents.reserve(group.items);
      for (std::size_t i = 0; i < group.items; ++i) {
        std::string contents;
        read_(first + i, contents);
        group.contents.push_back(std::move(contents));
      }
    } catch (...) {
      group.failure = std::current_exception();
    }
    lock.lock();
    group.ready = true;
    if (first == given_) ready_.notify_one();
  }
}

std::string Loader::next() {
  if (next_ == current_.contents.size() && current_.failure == nullptr) {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return groups_.empty() ? working_ == 0 : groups_.front().ready; });
    if (groups_.empty()) throw std::bad_alloc();
    current_ = std::move(groups_.front());
    groups_.pop_front();
    next_ = 0;
    given_ += current_.items;
    ahead_bytes_ -= current_.bytes;
    lock.unlock();
    room_.notify_one();  // a thread goes on until there is no room again
  }
  if (next_ == current_.contents.size()) std::rethrow_exception(current_.failure);
  return std::move(current_.contents[next_++]);
}

}  // namespace lmdbio::files
