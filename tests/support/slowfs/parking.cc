#include "tests/support/slowfs/parking.h"

#include <fuse_lowlevel.h>
#include <sys/prctl.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace lmdbio::slowfs {
namespace {

// Whether the thread that made the request has SIGKILL pending: the kernel turns all fatal signals into it.
bool being_killed(fuse_req* req) {
  std::ifstream in("/proc/" + std::to_string(fuse_req_ctx(req)->pid) + "/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("SigPnd:")) return (std::strtoull(line.c_str() + 7, nullptr, 16) >> 8 & 1) != 0;
  return true;  // gone, or in a namespace where nothing can be known
}

}  // namespace

Parking::Parking(Interrupted interrupted) : interrupted_(interrupted) {
  for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { run(); });
}

Parking::Id Parking::add(fuse_req* req, Kind kind, Clock::time_point due, Done done, const void* subject,
                         std::size_t want_hung) {
  const std::lock_guard lock(mutex_);
  const Id id = ++last_;
  Item& item = items_.emplace(id, Item{req, kind, due, std::move(done), subject, want_hung}).first->second;
  if (hangs(kind)) ++hung_;
  if (ending_) finish(id, item, Why::kEnding);
  for (auto& [other, i] : items_)
    if (i.want_hung != 0 && hung_ >= i.want_hung) finish(other, i, Why::kDue);
  return id;
}

void Parking::arm(Id id) {
  fuse_req* req;
  {
    const std::lock_guard lock(mutex_);
    req = items_.at(id).req;
  }
  fuse_req_interrupt_func(req, interrupted_, reinterpret_cast<void*>(id));  // may call it at once
  const std::lock_guard lock(mutex_);
  Item& item = items_.at(id);
  item.armed = true;
  order_.emplace(item.due, id);
  changed_.notify_one();
}

void Parking::finish(Id id, Item& item, Why why) {
  if (item.finished) return;
  finished(item);
  if (item.armed) order_.erase({item.due, id});
  item.why = why;
  item.due = Clock::time_point::min();
  if (!item.armed) return;
  order_.emplace(item.due, id);
  changed_.notify_one();
}

void Parking::finished(Item& item) {
  if (!item.finished && hangs(item.kind)) --hung_;
  item.finished = true;
}

void Parking::wake(const void* subject) {
  const std::lock_guard lock(mutex_);
  for (auto& [id, item] : items_)
    if (item.kind == Kind::kLock && item.subject == subject) finish(id, item, Why::kDue);
}

void Parking::release() {
  const std::lock_guard lock(mutex_);
  for (auto& [id, item] : items_)
    if (hangs(item.kind)) finish(id, item, Why::kReleased);
}

void Parking::interrupt(Id id) {
  const std::lock_guard lock(mutex_);
  const auto at = items_.find(id);
  if (at == items_.end()) return;
  Item& item = at->second;
  if (item.kind == Kind::kDelay || (item.kind == Kind::kHangRead && !being_killed(item.req))) return;
  finish(id, item, Why::kInterrupted);
}

std::size_t Parking::hung() const {
  const std::lock_guard lock(mutex_);
  return hung_;
}

void Parking::end() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    for (auto& [id, item] : items_) finish(id, item, Why::kEnding);
    changed_.notify_all();
  }
  for (std::thread& t : threads_)
    if (t.joinable()) t.join();
}

void Parking::run() {
  ::prctl(PR_SET_TIMERSLACK, 1UL);
  std::unique_lock lock(mutex_);
  while (!(ending_ && items_.empty())) {
    if (order_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto [due, id] = *order_.begin();
    if (due > Clock::now()) {
      if (due == kNever) {
        changed_.wait(lock);
      } else {
        changed_.wait_until(lock, due);
      }
      continue;
    }
    order_.erase(order_.begin());
    Item item = std::move(items_.at(id));
    items_.erase(id);
    finished(item);
    if (!order_.empty()) changed_.notify_one();  // another one waits for what is next
    lock.unlock();
    item.done(item.why);
    lock.lock();
  }
  changed_.notify_all();  // the others may end too
}

}  // namespace lmdbio::slowfs
