// Requests of programs, as the server of the node sees them.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "lmdbio/base/futex.h"
#include "lmdbio/node/service.h"
#include "lmdbio/node/service_layout.h"

namespace lmdbio::node {

using State = SlotValue::State;

std::optional<ListedService> listed_service() {
  for (const SegmentFacts& facts : own_segments()) {
    if (facts.key != key_of_user() || facts.bytes != kSegmentBytes) continue;
    const Result<Segment> s = Segment::open_read_only(facts.id);
    if (!s) continue;
    const auto& layout = *reinterpret_cast<const ServiceLayout*>(s.value().data());
    if (layout.version.load() != kVersion) continue;
    ListedService listed{!lives(layout.life.load()),
                         layout.nodes.load(),
                         facts.attached > 1 ? static_cast<unsigned>(facts.attached - 1) : 0,
                         {}};
    std::uint64_t numbers[std::size(ServiceLayout().counts)];
    for (std::size_t i = 0; i < std::size(numbers); ++i)
      numbers[i] = layout.counts[i].load(std::memory_order_relaxed);
    static_assert(sizeof numbers == sizeof listed.counts);
    std::memcpy(&listed.counts, numbers, sizeof numbers);
    return listed;
  }
  return {};
}

bool remove_dead_service() noexcept {
  if (!Segment::open(key_of_user())) return false;
  const Result<Segment> left = open_segment();
  return !left && left.error().raw() == ENOENT;
}

Result<std::unique_ptr<ServiceHost>> ServiceHost::make() noexcept {
  Result<Segment> life = Segment::make_unnamed(kLifeBytes);
  if (!life) return life.error();
  constexpr unsigned kTries = 4;
  Status last = Status::from_errno(EEXIST);
  for (unsigned i = 0; i < kTries; ++i) {
    Result<Segment> segment = Segment::make(key_of_user(), kSegmentBytes);
    if (!segment) {
      last = segment.error();
      if (last.raw() == EEXIST)
        if (const Result<Segment> old = open_segment(); old || old.error().raw() != ENOENT) return last;
      continue;
    }
    auto& layout = *reinterpret_cast<ServiceLayout*>(segment.value().data());
    layout.life.store(life_of(life.value()));
    layout.version.store(kVersion);
    if (segment.value().is_removed()) continue;  // by a program that saw it before it had a life
    std::unique_ptr<ServiceHost> host(new (std::nothrow)
                                          ServiceHost(std::move(segment).value(), std::move(life).value()));
    if (host == nullptr) return Status::from_errno(ENOMEM);
    return host;
  }
  return last;
}

ServiceHost::ServiceHost(Segment segment, Segment life) noexcept
    : segment_(std::move(segment)), life_(std::move(life)) {}

ServiceHost::~ServiceHost() { segment_.remove(); }

ServiceLayout& ServiceHost::layout() const noexcept {
  return *reinterpret_cast<ServiceLayout*>(segment_.data());
}

void ServiceHost::show_counts(const ServiceCounts& counts) noexcept {
  std::uint64_t numbers[std::size(ServiceLayout().counts)];
  static_assert(sizeof numbers == sizeof counts);
  std::memcpy(numbers, &counts, sizeof numbers);
  for (std::size_t i = 0; i < std::size(numbers); ++i)
    layout().counts[i].store(numbers[i], std::memory_order_relaxed);
}

void ServiceHost::set_nodes(std::uint32_t nodes) noexcept { layout().nodes.store(nodes); }

std::byte* ServiceHost::memory(unsigned slot) const noexcept {
  return segment_.data() + kMemoryAt + slot * kServiceBytes;
}

std::string ServiceHost::path(const Request& request) const {
  return {reinterpret_cast<const char*>(memory(request.slot)), std::min(request.bytes, kServiceBytes)};
}

void ServiceHost::show_work() noexcept { layout().worked_ns.store(now_ns(), std::memory_order_relaxed); }

std::optional<ServiceHost::Request> ServiceHost::next() noexcept {
  for (unsigned i = 0; i < kServiceSlots; ++i) {
    const unsigned at = next_ % kServiceSlots;
    ServiceSlotLayout& slot = layout().slots[at];
    ++next_;
    SlotValue value(slot.word.load());
    if (value.state() != State::asked || !change(slot.word, value, value.with(State::serving))) continue;
    numbers_[at] = value.bits();
    return Request{at,
                   Kind{slot.kind},
                   slot.file,
                   slot.offset,
                   std::min<std::uint64_t>(slot.bytes, kServiceBytes),
                   slot.state};
  }
  return std::nullopt;
}

void ServiceHost::finish(const Request& request, std::int64_t result, Bytes bytes) noexcept {
  ServiceSlotLayout& slot = layout().slots[request.slot];
  if (request.kind == Kind::read && !bytes.empty())
    std::memcpy(memory(request.slot), bytes.data(), bytes.size());
  // Hashes the server's own bytes.  A program that was taken for dead may write to the slot.
  slot.hash = hash_of(SlotValue(numbers_[request.slot]), static_cast<std::uint32_t>(request.kind),
                      request.file, request.offset, request.state, bytes);
  slot.result = result;
  show_work();
  if (node::finish(slot.word, SlotValue(numbers_[request.slot]))) wake(slot.word);
}

void ServiceHost::wait(std::int64_t timeout_ns) noexcept {
  const std::uint32_t seen = layout().asked.load();
  layout().sleeps.store(1);
  const auto waits = [](const ServiceSlotLayout& s) {
    return SlotValue(s.word.load()).state() == State::asked;
  };
  if (std::none_of(std::begin(layout().slots), std::end(layout().slots), waits))
    wait_on(layout().asked, seen, timeout_ns);
  layout().sleeps.store(0);
}

void ServiceHost::stop_waiting() noexcept {
  layout().asked.fetch_add(1);
  wake(layout().asked);
}

void ServiceHost::free_slots_of_dead() noexcept {
  for (unsigned i = 0; i < kServiceSlots; ++i) {
    ServiceSlotLayout& slot = layout().slots[i];
    SlotValue now(slot.word.load());
    const bool is_programs =
        now.state() == State::taken || now.state() == State::asked || now.state() == State::done;
    const bool is_dead = is_programs && !lives(slot.owner.load());
    if (is_dead && left_[i] == now.bits()) (void)change(slot.word, now, now.with(State::free));
    left_[i] = is_dead ? now.bits() : 0;
  }
}

unsigned ServiceHost::waiting() const noexcept {
  const auto waits = [](const ServiceSlotLayout& s) {
    return SlotValue(s.word.load()).state() == State::asked;
  };
  return static_cast<unsigned>(std::count_if(std::begin(layout().slots), std::end(layout().slots), waits));
}

unsigned ServiceHost::programs() const noexcept {
  return segment_.attachments() > 1 ? static_cast<unsigned>(segment_.attachments() - 1) : 0;
}

}  // namespace lmdbio::node
