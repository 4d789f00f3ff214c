#include "lmdbio/records/stream.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/base/interrupt.h"
#include "lmdbio/records/memory_wait.h"

namespace lmdbio::records {

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
/// Bytes of a fetch.  kLoadBytes are a few requests of the largest size.  kCachedLoadBytes, for copies from
/// the page cache, fit into a processor's cache.
constexpr std::uint64_t kLoadBytes = 4 * kMiB, kCachedLoadBytes = kMiB / 2;
/// Returns the bytes up to which a fetch is filled.  The rest stays free, because records differ in size, but
/// buffers should have the same size.
constexpr std::uint64_t full(std::uint64_t bytes) noexcept { return bytes - bytes / 16; }
/// Bytes of the first fetch.  It is small, because the program can do nothing else until it has been read.
constexpr std::uint64_t kFirstLoadBytes = kMiB;
/// Bytes to read ahead.  Remote file systems need some dozens of requests of 1 MiB in flight.
constexpr std::uint64_t kAheadBytes = 32 * kMiB;
/// Minimum number of fetches to read ahead, so that the program can use one batch while the next one is read.
constexpr std::size_t kLeastAhead = 2;
/// A fetch normally takes at most one kLoadsInMemory-th of its stream's share of memory.
constexpr std::uint64_t kLoadsInMemory = 8;
/// The longest wait for the turn, in nanoseconds, before the conditions are checked again.
constexpr std::int64_t kLongest = 250'000'000;

}  // namespace

Stream::Stream(Reader& reader, Sequence sequence, bool zero_copy)
    : reader_(reader),
      shared_(reader.shared()),
      sequence_(std::move(sequence)),
      pid_(::getpid()),
      queues_(shared_),
      plan_(sequence_.first()),
      give_(plan_),
      zero_copy_(zero_copy) {
  Memory& memory = shared_.memory();
  const std::lock_guard lock(memory.mutex);
  memory.open_streams.push_back(this);
  memory.streams.fetch_add(1, std::memory_order_relaxed);
  shared_.streams.fetch_add(1, std::memory_order_relaxed);
}

Status Stream::open(Reader& reader, const lmdbio_order& order, std::unique_ptr<Stream>& out,
                    std::string& why) {
  if (!reader.ours(why)) return Status::from_errno(EINVAL);
  const std::string& name = reader.shared().source.name;
  const char* wrong = nullptr;
  Result<Order> made = Order::make(order, reader.count(), &wrong, nullptr, reader.locations().firsts());
  if (!made) {
    if (wrong != nullptr) why = name + ": lmdbio_order: " + wrong;
    return made.error();
  }
  std::vector<std::uint64_t> ordinals;
  const std::uint64_t scattered = made.value().in_order()        ? 0
                                  : made.value().across_epochs() ? made.value().left({0, 0}, 0)
                                                                 : made.value().length();
  if (order.kind == LMDBIO_ORDER_KEYS)
    if (const Status st = reader.find({order.keys, order.length}, ordinals, why); !st.ok()) return st;
  Result<Sequence> sequence = Sequence::make(order, std::move(made).value(), std::move(ordinals));
  if (!sequence) return sequence.error();
  out.reset(new Stream(reader, std::move(sequence).value(), order.zero_copy != 0));
  out->scattered_ = std::min(scattered, reader.count());
  return {};
}

Stream::~Stream() {
  if (::getpid() != pid_) {
    queues_.forget();
    // Another thread of the parent may have been changing them at the fork.
    if (turn_.load() != kFree) {
      (void)owned_ahead_.release();
      (void)unstarted_.release();
    }
    return;
  }
  {
    Memory& memory = shared_.memory();
    const std::lock_guard lock(memory.mutex);
    std::erase(memory.open_streams, this);
    memory.streams.fetch_sub(1, std::memory_order_relaxed);
  }
  (void)enter(true);
  shared_.streams.fetch_sub(1, std::memory_order_relaxed);
  shared_.reserved.fetch_sub(reserved_, std::memory_order_relaxed);
  go_back();
}

void Stream::cancel() noexcept {
  cancelled_.store(true, std::memory_order_release);
  shared_.pool->changes().notify();
}

// Takes the turn.  Returns false if the stream was cancelled, unless `always` is set.
bool Stream::enter(bool always) noexcept {
  if (try_enter()) return true;
  for (;;) {
    const std::uint32_t seen = shared_.pool->changes().now();
    if (turn_.exchange(kWaitedFor) == kFree) return true;
    if (!always && wait_ended(cancelled_)) return false;
    {
      const AsyncSignalsAllowed program;
      shared_.pool->changes().wait(seen, kLongest);
    }
    if (::getpid() != pid_) return true;  // a signal handler has forked; next() reports it
  }
}

bool Stream::try_enter() noexcept {
  int expected = kFree;
  return turn_.compare_exchange_strong(expected, kTaken);
}

// Ends the turn.  Keeps a reference to the pool, because another thread may destroy the stream when the turn
// has ended.
void Stream::leave() noexcept {
  reserve();
  const std::shared_ptr<BufferPool> pool = shared_.pool;
  end_turn();
  pool->notify_needs();
}

// The caller must not use the stream after this: another thread may destroy it.
void Stream::end_turn() noexcept {
  const std::shared_ptr<BufferPool> pool = shared_.pool;
  if (turn_.exchange(kFree) == kWaitedFor) pool->changes().notify();
}

// Reserves memory for the next batch while nothing is read ahead.  Other streams cannot use reserved memory
// for read-ahead, and the program may never request another batch.  The reservation is therefore at most this
// stream's share.
void Stream::reserve() noexcept {
  const std::uint64_t wanted = ahead_.empty() ? std::min(batch_bytes_, share()) : 0;
  if (wanted == reserved_) return;
  shared_.reserved.fetch_add(wanted - reserved_, std::memory_order_relaxed);
  reserved_ = wanted;
}

std::uint64_t Stream::reserved_by_others() const noexcept {
  const std::uint64_t all = shared_.reserved.load(std::memory_order_relaxed);
  return std::min(all - std::min(all, reserved_), shared_.pool->limit());
}

std::uint64_t Stream::share() const noexcept { return shared_.share_of_one(0); }

std::uint64_t Stream::load_target() const noexcept {
  if (waits_for_load()) return std::min(kFirstLoadBytes, share() / kLoadsInMemory);
  return std::min(cached_ && !zero_copy_ ? kCachedLoadBytes : kLoadBytes, share() / kLoadsInMemory);
}

// Returns true if no more fetches should start.  Data in the page cache needs no read-ahead.  It is copied
// when it is needed, into the buffer that was released last.  This buffer is still in the processor's caches.
bool Stream::enough_ahead() const noexcept {
  if (cached_) return !ahead_.empty();
  if (waits_for_load() && ahead_.size() >= kLeastAhead) return true;
  return ahead_.size() >= kLeastAhead && ahead_bytes_ >= std::min(kAheadBytes, share() / 2);
}

// Plans a fetch of the next batches.  Sets `out` to null at the end of the stream.
Status Stream::plan(std::unique_ptr<Ahead>& out, std::string& why) {
  out.reset();
  auto made = std::make_unique<Ahead>();
  Fetch& fetch = *made->fetch;
  if (const std::uint64_t n = std::exchange(scattered_, 0); n != 0 && shared_.source.kept != nullptr)
    shared_.source.kept->need(shared_.offset(shared_.source.pages) / reader_.count() * n, n);
  const std::uint64_t target = begun_ ? full(load_target()) : std::min(kFirstLoadBytes, load_target());
  Position at = plan_;
  for (;;) {
    const std::optional<BatchPlan> b = sequence_.batch(at);
    if (!b) break;
    for (std::uint64_t i = 0; i < b->count;) {
      std::uint64_t some[64];
      std::size_t n = 0;
      while (n < std::size(some) && i < b->count) some[n++] = sequence_.ordinal(*b, i++);
      const Status st =
          add_records(reader_.locations(), shared_, {some, n}, cancelled_, fetch, why, sequence_.by_key());
      if (st.ok()) continue;
      // The batches before this one can still be read.
      if (made->batches.empty()) return st;
      singly_ = true;
      single_until_ = b->after;
      return plan(out, why);
    }
    made->batches.push_back(*b);
    at = b->after;
    if (singly_) break;
    const std::uint64_t one_more = fetch.bytes() + fetch.bytes() / made->batches.size();
    // The records of a window are spread over all its batches, so it is best to read these batches together.
    const std::uint64_t most = sequence_.mixed_with_next(*b) ? share() / kLoadsInMemory : target;
    if (one_more > most) break;
  }
  if (made->batches.empty()) return {};
  if (singly_ && at == single_until_) singly_ = false;
  fetch.plan(shared_, share() / 2);
  if (zero_copy_) fetch.lend();
  plan_ = at;
  begun_ = true;
  out = std::move(made);
  return {};
}

// Starts a fetch.  If the program waits for its batch (`needed`), the fetch may use all memory, even that of
// read-ahead.  Otherwise, the fetch leaves room for the next batch of every other stream.
Status Stream::start(Ahead& a, bool needed, std::string& why) {
  Fetch& fetch = *a.fetch;
  const std::uint64_t limit = shared_.pool->limit();
  const bool urgent = ahead_.size() <= kLeastAhead;  // ahead_ includes this fetch
  const auto least = static_cast<std::size_t>(load_target());
  Status st;
  if (needed && a.batches.size() == 1) {
    st = start_needed(shared_, queues_, fetch, least, {cancelled_, this});
  } else {
    const std::uint64_t spared = needed ? 0 : std::max(urgent ? 0 : limit / 4, reserved_by_others());
    MemoryRequest memory{.most = limit - spared, .least = least};
    st = fetch.start(shared_, queues_, memory);
    memory.least = 0;
    if (st.raw() == ENOMEM && urgent) st = fetch.start(shared_, queues_, memory);
  }
  if (!st.ok())
    why = st.raw() == ENOMEM ? memory_reason(shared_, fetch) : reason(shared_, "cannot be read", st);
  return st;
}

// Starts as many fetches as there is room for.  The caller ignores errors while there are fetches ahead.
// `waits`: the program waits for the next batch.
Status Stream::fill(bool waits, std::string& why) {
  while (unstarted_ != nullptr || !enough_ahead()) {
    if (unstarted_ == nullptr) {
      if (const Status st = plan(unstarted_, why); !st.ok()) return st;
      if (unstarted_ == nullptr) break;
    }
    if (enough_ahead()) break;
    const bool needed = waits && ahead_.empty();
    ahead_.emplace_back();  // before the reads begin, because it may throw
    Status st;
    try {
      st = start(*unstarted_, needed, why);
    } catch (...) {
      ahead_.pop_back();
      throw;
    }
    if (!st.ok()) {
      ahead_.pop_back();
      // There may be room for a single batch.
      if (st.raw() != ENOMEM || !needed || unstarted_->batches.size() == 1) {
        queues_.pump();
        return st;
      }
      single_until_ = unstarted_->batches.back().after;
      singly_ = true;
      plan_ = unstarted_->batches.front().at;
      unstarted_.reset();
      continue;
    }
    const bool cached = unstarted_->fetch->cached();
    cached_in_a_row_ = cached ? cached_in_a_row_ + 1 : 0;
    cached_ = cached_in_a_row_ > kCachedInARow;
    unstarted_->cost = std::max<std::uint64_t>(unstarted_->fetch->buffer_bytes(), unstarted_->fetch->bytes());
    batch_bytes_ = unstarted_->fetch->bytes() / unstarted_->batches.size();
    ahead_bytes_ += unstarted_->cost;
    ahead_.back() = std::move(unstarted_);
    ++shared_.counters.fetches;
    if (cached) ++shared_.counters.fetches_cached;
  }
  queues_.pump();
  return {};
}

// Waits for the reads of a fetch.
Status Stream::await(Ahead& a, std::string& why) {
  if (a.finished) return {};
  ReadGroup& group = a.fetch->group();
  if (!group.done()) {
    const std::int64_t begun = now_ns();
    const Status st = a.fetch->queue()->wait(group, cancelled_);
    ++shared_.counters.waits;
    shared_.counters.wait_ns += static_cast<std::uint64_t>(now_ns() - begun);
    if (!group.done()) return st;
  }
  const Status st = group.status.ok() ? a.fetch->finish(shared_) : group.status;
  a.finished = st.ok();
  if (!st.ok())
    why = reason(
        shared_, *a.fetch,
        "record " + std::to_string(a.fetch->ordinal(a.record)) + " and records read with it cannot be read",
        st);
  return st;
}

Status Stream::next(std::unique_ptr<Batch>& out, std::string& why) {
  if (::getpid() != pid_) {
    (void)reader_.ours(why);
    return Status::from_errno(EINVAL);
  }
  if (!enter(false)) {
    why = shared_.source.name + ": cancelled";
    return Status::from_errno(ECANCELED);
  }
  struct Leaver {
    Stream& stream;
    ~Leaver() { stream.leave(); }
  } const leaver{*this};
  return next_batch(out, why);
}

Status Stream::next_batch(std::unique_ptr<Batch>& out, std::string& why) {
  for (;;) {
    if (::getpid() != pid_) {  // a signal handler may have forked during a wait
      (void)reader_.ours(why);
      return Status::from_errno(EINVAL);
    }
    if (wait_ended(cancelled_)) {
      batch_bytes_ = 0;
      why = shared_.source.name + ": cancelled";
      return Status::from_errno(ECANCELED);
    }
    const Status filled = fill(true, why);
    if (filled.raw() == ECANCELED) continue;
    if (ahead_.empty()) {
      if (!filled.ok()) {
        ++shared_.counters.failed;
        return filled;
      }
      batch_bytes_ = 0;
      why.clear();
      return Status::from_mdb(MDB_NOTFOUND);
    }
    Ahead& a = *ahead_.front();
    const HeldFetch held(a.fetch);
    if (const Status st = await(a, why); !st.ok()) {
      if (!a.fetch->group().done()) continue;  // cancelled
      // It is unknown which of the batches has failed, so read them again one by one.
      const bool alone = a.batches.size() == 1;
      single_until_ = a.batches.back().after;
      go_back();
      singly_ = true;
      if (!alone) continue;
      ++shared_.counters.failed;
      queues_.count();
      return st;
    }
    if (wait_ended(cancelled_)) continue;                     // even if the reads have ended meanwhile
    if (a.fetch->lends() && !a.fetch->still_lent(shared_)) {  // reading again will report the error
      zero_copy_ = false;
      go_back();
      continue;
    }
    const BatchPlan& b = a.batches[a.given];
    if (const Status st = make_batch(shared_, a.fetch, a.record, static_cast<std::size_t>(b.count), out, why);
        !st.ok()) {
      single_until_ = a.batches.back().after;
      go_back();
      singly_ = true;
      return st;
    }
    out->epoch = b.at.epoch;
    out->position = b.at.position;
    out->padding = static_cast<std::size_t>(b.padding);
    give_ = b.after;
    a.record += static_cast<std::size_t>(b.count);
    if (++a.given == a.batches.size()) {
      ahead_bytes_ -= a.cost;
      ahead_.pop_front();
    }
    std::string ignored;
    if (!cached_) try {
        (void)fill(false, ignored);  // an error will occur again when its batch is due
      } catch (...) {
      }
    queues_.count();
    return {};
  }
}

}  // namespace lmdbio::records
