// The server of this node, as a program sees it.
#include "lmdbio/node/service.h"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "lmdbio/base/fork_safe_mutex.h"
#include "lmdbio/base/futex.h"
#include "lmdbio/node/service_layout.h"

namespace lmdbio::node {

namespace {

using State = SlotValue::State;
using Kind = ServiceHost::Kind;

/// The first pause after a server did not answer, and the longest one, in ns.  Each pause is twice as long as
/// the one before, less an eighth for each answer in between.  The first pause ends when the server works
/// again.
constexpr std::int64_t kFirstPause = 500'000'000, kLongestPause = 60'000'000'000;
/// How long a program sleeps between two looks for a free slot, in ns.
constexpr std::int64_t kLook = 500'000;

/// Sleeps with the program's signal mask.  A signal handler may fork meanwhile.
template <class Sleep>
void sleep(Sleep&& sleeps) noexcept {
  const AsyncSignalsAllowed program;
  sleeps();
}

}  // namespace

struct Service::Registry {
  std::atomic<unsigned> forks{0};  ///< of this process's ancestors
  SignalSafeMutex mutex;           // guards the members below
  std::weak_ptr<Service> service;
  Segment life;
  static Registry& get() noexcept {
    alignas(Registry) static constinit unsigned char place[sizeof(Registry)]{};
    static Registry& r = *new (place) Registry;
    return r;
  }
};

struct Service::Question {
  ServiceHost::Kind kind;
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  std::size_t bytes = 0;
  const ServedState& state;
  Bytes path{};  ///< only to open a file
};

/// A question that the server has got.
struct Service::Asked {
  unsigned slot;
  SlotValue request;
  std::int64_t begun;
};

namespace {

// Copies the answer to a request out of its slot, and verifies it.
template <class Question>
Result<std::int64_t> take_answer(const ServiceSlotLayout& slot, const std::byte* memory, SlotValue request,
                                 const Question& asked, MutableBytes to) noexcept {
  const std::int64_t result = slot.result;
  if (result < 0) return Status::from_errno(result >= -4095 ? static_cast<int>(-result) : EIO);
  Bytes bytes = asked.path;
  if (asked.kind == Kind::read) {
    const auto n = static_cast<std::size_t>(result & ~kPackedResult);
    if (n > asked.bytes) return Status::from_errno(EIO);
    std::memcpy(to.data(), memory, n);
    bytes = to.first(n);
  }
  const std::uint64_t hash =
      hash_of(request, static_cast<std::uint32_t>(asked.kind), asked.file, asked.offset, asked.state, bytes);
  if (hash != slot.hash) return Status::from_errno(EIO);
  return result;
}

}  // namespace

Service::Service(Segment segment) noexcept : segment_(std::move(segment)), forks_(Registry::get().forks) {}

Service::~Service() {
  if (is_inherited()) segment_.forget();
}

bool Service::is_inherited() const noexcept { return forks_ != Registry::get().forks; }

bool Service::answers() const noexcept { return !is_inherited() && !is_pausing(now_ns()); }

ServiceLayout& Service::layout() const noexcept { return *reinterpret_cast<ServiceLayout*>(segment_.data()); }

std::shared_ptr<Service> Service::get() noexcept {
  Registry& r = Registry::get();
  const std::lock_guard lock(r.mutex);
  try {
    std::shared_ptr<Service> service = r.service.lock();
    if (service != nullptr && !service->lives()) service.reset();
    if (service == nullptr) {
      Result<Segment> segment = open_segment();
      if (!segment) return nullptr;
      if (!r.life) {
        Result<Segment> life = Segment::make_unnamed(kLifeBytes);
        if (!life) return nullptr;
        r.life = std::move(life).value();
      }
      service.reset(new Service(std::move(segment).value()));
      r.service = service;
    }
    if (service->layout().nodes.load() < 2) return nullptr;
    return service;
  } catch (...) {
    return nullptr;
  }
}

void Service::lock_registry() noexcept { Registry::get().mutex.lock(); }
void Service::unlock_registry() noexcept { Registry::get().mutex.unlock(); }

void Service::forget_all() noexcept {
  Registry& r = Registry::get();
  ++r.forks;
  r.service.reset();
  r.life.forget();
  r.life = {};
}

bool Service::is_pausing(std::int64_t now) const noexcept {
  const std::int64_t pause = silence_.load(std::memory_order_relaxed),
                     until = silent_until_.load(std::memory_order_relaxed);
  return now < until &&
         (pause > kFirstPause || layout().worked_ns.load(std::memory_order_relaxed) < until - pause);
}

bool Service::lives() const noexcept { return node::lives(layout().life.load()); }

// The server did not answer a request.  Of several requests at the same time, one counts.  `hangs`: it works,
// but has not answered for so long that it does not matter.
void Service::answered_late(std::int64_t now, bool hangs) noexcept {
  std::int64_t until = silent_until_.load(std::memory_order_relaxed);
  if (now < until) return;
  const std::int64_t pause = std::clamp(2 * silence_.load(std::memory_order_relaxed),
                                        hangs ? 2 * kFirstPause : kFirstPause, kLongestPause);
  if (silent_until_.compare_exchange_strong(until, lives() ? now + pause : INT64_MAX))
    silence_.store(lives() ? pause : INT64_MAX / 4, std::memory_order_relaxed);
}

// Returns whether the server has not answered for too long.  The file system may be slow, also for this
// process, as long as the server works.
bool Service::is_over(std::int64_t begun, std::int64_t now) const noexcept {
  const std::int64_t worked = std::min(layout().worked_ns.load(std::memory_order_relaxed), now);
  return now - std::max(begun, worked) > kMostWait || now - begun > kLongestWait;
}

Result<Service::Opened> Service::open(std::string_view path, const ServedState& state) noexcept {
  if (path.size() > kServiceBytes) return Status::from_errno(ENAMETOOLONG);
  const Question question{Kind::open, 0, 0, path.size(), state, std::as_bytes(std::span(path))};
  const Result<Asked> asked = ask(question, true);
  if (!asked) return asked.error();
  wake_server();
  const Result<std::int64_t> got = answer(question, asked.value(), {});
  if (!got) return got.error();
  return Opened{static_cast<std::uint32_t>(got.value()), (got.value() & kStoresResult) != 0};
}

void Service::read(std::uint32_t file, const ServedState& state, std::span<Range> ranges) noexcept {
  const auto question = [&](const Range& r) {
    return Question{Kind::read, file, r.offset, std::min(r.to.size(), kServiceBytes), state};
  };
  while (!ranges.empty()) {
    std::array<std::optional<Asked>, kAtOnce> asked;
    std::size_t n = 0;
    bool any = false;
    for (; n < std::min(kAtOnce, ranges.size()); ++n) {
      // Waits for a slot only if this thread has none that others may wait for.
      const Result<Asked> one = ask(question(ranges[n]), n == 0);
      if (!one && n != 0) break;
      if (one)
        asked[n] = one.value();
      else
        ranges[n].result = one.error();
      any = any || one;
    }
    if (any) wake_server();
    for (std::size_t i = 0; i < n; ++i) {
      if (!asked[i]) continue;
      Range& r = ranges[i];
      const Result<std::int64_t> got = answer(question(r), *asked[i], r.to);
      r.packed = got && (got.value() & kPackedResult) != 0;
      if (got)
        r.result = static_cast<std::size_t>(got.value() & ~kPackedResult);
      else
        r.result = got.error();
    }
    ranges = ranges.subspan(n);
  }
}

// Writes a question to a slot.  `waits`: for a free slot, if there is none.
Result<Service::Asked> Service::ask(const Question& question, bool waits) noexcept {
  const Status late = Status::from_errno(ETIMEDOUT);
  if (is_inherited()) return Status::from_errno(ECANCELED);
  ServiceLayout& all = layout();
  const std::int64_t begun = now_ns();
  if (all.nodes.load(std::memory_order_relaxed) < 2 || is_pausing(begun)) return late;

  const unsigned first = next_.fetch_add(1, std::memory_order_relaxed);
  unsigned index = 0;
  SlotValue request{0};
  for (unsigned i = 0;; ++i) {
    index = (first + i) % kServiceSlots;
    if (take(all.slots[index].word, request)) break;
    if (i % kServiceSlots != kServiceSlots - 1) continue;
    if (!waits) return late;
    const std::int64_t now = now_ns();
    if (is_over(begun, now) || now - begun > kMostWait) {
      answered_late(now, false);
      return late;
    }
    const timespec nap{0, kLook};
    sleep([&] { (void)::nanosleep(&nap, nullptr); });
    if (is_inherited()) return Status::from_errno(ECANCELED);
  }
  ServiceSlotLayout& slot = all.slots[index];
  slot.owner.store(life_of(Registry::get().life), std::memory_order_relaxed);
  slot.kind = static_cast<std::uint32_t>(question.kind);
  slot.file = question.file;
  slot.offset = question.offset;
  slot.bytes = question.bytes;
  slot.state = question.state;
  if (!question.path.empty())
    std::memcpy(segment_.data() + kMemoryAt + index * kServiceBytes, question.path.data(),
                question.path.size());
  SlotValue seen = request;
  if (!change(slot.word, seen, request.with(State::asked)))
    return late;  // the server took this process for dead
  return Asked{index, request, begun};
}

void Service::wake_server() noexcept {
  layout().asked.fetch_add(1);
  if (layout().sleeps.load() != 0) wake(layout().asked);
}

// Waits for the answer, and frees the slot.
Result<std::int64_t> Service::answer(const Question& question, const Asked& asked, MutableBytes to) noexcept {
  const Status late = Status::from_errno(ETIMEDOUT);
  ServiceSlotLayout& slot = layout().slots[asked.slot];
  const SlotValue request = asked.request;
  for (;;) {
    if (is_inherited()) return Status::from_errno(ECANCELED);
    const SlotValue seen(slot.word.load());
    if (seen == request.with(State::done)) break;
    if (seen != request.with(State::asked) && seen != request.with(State::serving)) return late;
    const std::int64_t now = now_ns();
    if (is_over(asked.begun, now)) {
      answered_late(now, now - asked.begun > kLongestWait);
      if (give_up(slot.word, request) == GaveUp::yes) return late;
      break;
    }
    sleep([&] { wait_on(slot.word, seen.bits(), kMostWait / 4); });
  }
  if (const std::int64_t pause = silence_.load(std::memory_order_relaxed); pause != 0)
    silence_.store(pause - (pause + 7) / 8, std::memory_order_relaxed);
  const std::byte* const memory = segment_.data() + kMemoryAt + asked.slot * kServiceBytes;
  const Result<std::int64_t> answer = take_answer(slot, memory, request, question, to);
  SlotValue seen = request.with(State::done);
  (void)change(slot.word, seen, request.with(State::free));
  return answer;
}

}  // namespace lmdbio::node
