// The memory of streams: drops read-ahead when a caller needs its memory.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/records/memory_wait.h"
#include "lmdbio/records/stream.h"

namespace lmdbio::records {

namespace {

/// For calls that cannot be cancelled.
const std::atomic<bool> kNever{false};

}  // namespace

// Drops all read-ahead.  Planning starts again with the next batch to return.
void Stream::go_back() noexcept {
  for (const auto& a : ahead_)
    if (a != nullptr && a->fetch->queue() != nullptr) a->fetch->queue()->drop(a->fetch->group());
  ahead_.clear();
  unstarted_.reset();
  ahead_bytes_ = 0;
  plan_ = give_;
}

// Returns true if there are more than `kept` fetches and the newest fetch is not held.  The newest fetch is
// dropped first, because the program uses it last.
bool Stream::droppable(std::size_t kept) const noexcept {
  return ahead_.size() > kept && !ahead_.back()->fetch->held();
}

// Drops the newest fetch.  The caller has the stream's turn.  Returns false if the reads are still in
// flight because `waiting` is null or was cancelled.
bool Stream::drop_newest(const Caller* waiting) noexcept {
  Ahead& a = *ahead_.back();
  ReadGroup& group = a.fetch->group();
  if (ReadQueue* const queue = a.fetch->queue(); !group.done()) {
    // If `waiting` is null, the caller holds Memory::mutex, and this function must not block.
    if (group.waiting != group.left) waiting != nullptr ? queue->pump() : queue->take_done();
    if (waiting != nullptr && group.waiting != group.left)
      (void)queue->wait(group, waiting->cancelled);
    else if (waiting != nullptr || group.waiting == group.left)
      queue->drop(group);
    if (!group.done()) return false;
  }
  ahead_bytes_ -= a.cost;
  plan_ = a.batches[a.given].at;
  unstarted_.reset();  // its batches come after those of the dropped fetch
  ahead_.pop_back();
  return true;
}

// Prefers fetches that are not the next one of their stream.  If the reads of all candidates are in flight,
// waits for one of the candidates.
Stream::Dropped Stream::drop_of_others(Memory& memory, const Shared* of, const Caller& caller) noexcept {
  Stream* slow = nullptr;
  bool busy = false;
  {
    const std::lock_guard lock(memory.mutex);
    std::vector<Stream*>& all = memory.open_streams;
    for (const std::size_t kept : {1u, 0u}) {
      for (auto at = all.begin(); at != all.end(); ++at) {
        Stream* const s = *at;
        if (of != nullptr && of != &s->shared_) continue;
        if (s == caller.stream || s == slow) continue;
        if (!s->try_enter()) {
          busy = true;
          continue;
        }
        if (s->droppable(kept) && s->drop_newest(nullptr)) {
          std::rotate(at, at + 1, all.end());
          s->leave();
          if (slow != nullptr) slow->end_turn();
          return Dropped::some;
        }
        if (kept == 0 && slow == nullptr && s->droppable(0))
          slow = s;
        else
          s->end_turn();
      }
    }
  }
  if (slow == nullptr) return busy ? Dropped::busy : Dropped::none;
  (void)slow->drop_newest(&caller);
  slow->leave();
  return Dropped::some;
}

bool take_least(Shared& shared) noexcept {
  MemoryWait wait(shared.memory(), {kNever});
  for (;;) {
    wait.begin();
    if (shared.pool->take_least()) return true;
    if (!shared.memory().could_have(MemoryUse::readers, BufferPool::kLeast)) {
      if (!wait.changed()) return false;
    } else if (!wait.make_way(nullptr).ok()) {
      return false;
    }
  }
}

Status start_needed(Shared& shared, Queues& queues, Fetch& fetch, std::size_t least,
                    const Stream::Caller& caller) noexcept {
  BufferPool& pool = *shared.pool;
  MemoryRequest memory{.most = pool.limit(), .least = least, .needed = true};
  Status st = fetch.start(shared, queues, memory);
  if (st.raw() != ENOMEM) return st;
  const BufferPool::Need need(pool);
  do {
    MemoryWait wait(shared.memory(), caller);
    for (;;) {
      wait.begin();
      memory.urgency = wait.urgency();
      st = fetch.start(shared, queues, memory);
      if (st.raw() != ENOMEM) return st;
      if (!memory.ahead_in_the_way && !memory.others_in_the_way) {
        if (wait.changed()) continue;
        break;
      }
      const Status made = wait.make_way(memory.others_in_the_way ? nullptr : &shared);
      if (made.raw() == ECANCELED) return made;
      if (!made.ok()) break;
    }
  } while (fetch.plan_less());
  return st;
}

}  // namespace lmdbio::records
