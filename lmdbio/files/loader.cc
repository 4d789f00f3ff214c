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

void Loader::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    room_.wait(lock, [this] {
      return ends_ || taken_ == end_ || slots_.empty() ||
             (ahead_bytes_ < kAheadBytes && slots_.size() < kAheadItems);
    });
    if (ends_ || taken_ == end_) return;
    // References to elements of a deque stay valid while others are added and removed at its ends.
    try {
      slots_.emplace_back();
    } catch (const std::bad_alloc&) {  // the others go on; without any of them, next() fails
      if (--working_ == 0) ready_.notify_one();
      room_.notify_one();
      return;
    }
    Slot& slot = slots_.back();
    const std::size_t item = taken_++;
    slot.bytes = size_(item);
    ahead_bytes_ += slot.bytes;
    lock.unlock();
    try {
      read_(item, slot.contents);
    } catch (...) {
      slot.failure = std::current_exception();
    }
    lock.lock();
    slot.ready = true;
    if (item == given_) ready_.notify_one();
  }
}

std::string Loader::next() {
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [this] { return slots_.empty() ? working_ == 0 : slots_.front().ready; });
  if (slots_.empty()) throw std::bad_alloc();
  Slot slot = std::move(slots_.front());
  slots_.pop_front();
  ++given_;
  ahead_bytes_ -= slot.bytes;
  lock.unlock();
  room_.notify_one();  // a thread goes on until there is no room again
  if (slot.failure != nullptr) std::rethrow_exception(slot.failure);
  return std::move(slot.contents);
}

}  // namespace lmdbio::files
