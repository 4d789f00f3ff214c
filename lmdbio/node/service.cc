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

struct Service::Asked {
  ServiceHost::Kind kind;
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  std::size_t bytes = 0;
  ServedState state;
};

namespace {

// Copies the answer to a request out of its slot, and verifies it.
template <class Asked>
Result<std::size_t> take_answer(const ServiceSlotLayout& slot, const std::byte* memory, SlotValue request,
                                const Asked& asked, Bytes question, MutableBytes to) noexcept {
  const std::int64_t result = slot.result;
  if (result < 0) return Status::from_errno(result >= -4095 ? static_cast<int>(-result) : EIO);
  Bytes bytes = question;
  if (asked.kind == Kind::read) {
    const auto n = static_cast<std::size_t>(result);
    if (n > asked.bytes) return Status::from_errno(EIO);
    std::memcpy(to.data(), memory, n);
    bytes = to.first(n);
  }
  const std::uint64_t hash =
      hash_of(request, static_cast<std::uint32_t>(asked.kind), asked.file, asked.offset, asked.state, bytes);
  if (hash != slot.hash) return Status::from_errno(EIO);
  return static_cast<std::size_t>(result);
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

Result<std::uint32_t> Service::open(std::string_view path, const ServedState& state) noexcept {
  if (path.size() > kServiceBytes) return Status::from_errno(ENAMETOOLONG);
  Asked asked{ServiceHost::Kind::open, 0, 0, path.size(), state};
  const Result<std::size_t> got = ask(asked, std::as_bytes(std::span(path)), {});
  if (!got) return got.error();
  return static_cast<std::uint32_t>(got.value());
}

Result<std::size_t> Service::read(std::uint32_t file, const ServedState& state, std::uint64_t offset,
                                  MutableBytes to) noexcept {
  return ask({Kind::read, file, offset, std::min(to.size(), kServiceBytes), state}, {}, to);
}

Result<std::size_t> Service::ask(const Asked& asked, Bytes question, MutableBytes to) noexcept {
  const Status late = Status::from_errno(ETIMEDOUT);
  if (is_inherited()) return Status::from_errno(ECANCELED);
  ServiceLayout& all = layout();
  const std::int64_t begun = now_ns();
  std::int64_t now = begun;
  if (all.nodes.load(std::memory_order_relaxed) < 2 || is_pausing(now)) return late;
  // The file system may be slow, also for this process, as long as the server works.
  const auto is_over = [&] {
    const std::int64_t worked = std::min(all.worked_ns.load(std::memory_order_relaxed), now);
    return now - std::max(begun, worked) > kMostWait || now - begun > kLongestWait;
  };

  const unsigned first = next_.fetch_add(1, std::memory_order_relaxed);
  ServiceSlotLayout* slot = nullptr;
  unsigned index = 0;
  SlotValue request{0};
  for (unsigned i = 0;; ++i) {
    index = (first + i) % kServiceSlots;
    if (take(all.slots[index].word, request)) {
      slot = &all.slots[index];
      break;
    }
    if (i % kServiceSlots != kServiceSlots - 1) continue;
    now = now_ns();
    if (is_over() || now - begun > kMostWait) {
      answered_late(now, false);
      return late;
    }
    const timespec nap{0, kLook};
    sleep([&] { (void)::nanosleep(&nap, nullptr); });
    if (is_inherited()) return Status::from_errno(ECANCELED);
  }
  std::byte* const memory = segment_.data() + kMemoryAt + index * kServiceBytes;
  slot->owner.store(life_of(Registry::get().life), std::memory_order_relaxed);
  slot->kind = static_cast<std::uint32_t>(asked.kind);
  slot->file = asked.file;
  slot->offset = asked.offset;
  slot->bytes = asked.bytes;
  slot->state = asked.state;
  if (!question.empty()) std::memcpy(memory, question.data(), question.size());
  SlotValue seen = request;
  if (!change(slot->word, seen, request.with(State::asked)))
    return late;  // the server took this process for dead
  seen = request.with(State::asked);
  all.asked.fetch_add(1);
  if (all.sleeps.load() != 0) wake(all.asked);

  for (;;) {
    if (is_inherited()) return Status::from_errno(ECANCELED);
    seen = SlotValue(slot->word.load());
    if (seen == request.with(State::done)) break;
    if (seen != request.with(State::asked) && seen != request.with(State::serving)) return late;
    now = now_ns();
    if (is_over()) {
      answered_late(now, now - begun > kLongestWait);
      if (give_up(slot->word, request) == GaveUp::yes) return late;
      break;
    }
    sleep([&] { wait_on(slot->word, seen.bits(), kMostWait / 4); });
  }
  if (const std::int64_t pause = silence_.load(std::memory_order_relaxed); pause != 0)
    silence_.store(pause - (pause + 7) / 8, std::memory_order_relaxed);
  const Result<std::size_t> answer = take_answer(*slot, memory, request, asked, question, to);
  seen = request.with(State::done);
  (void)change(slot->word, seen, request.with(State::free));
  return answer;
}

}  // namespace lmdbio::node
