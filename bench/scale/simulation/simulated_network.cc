#include "bench/scale/simulation/simulated_network.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <simgrid/kernel/Timer.hpp>
#include <utility>

namespace lmdbio::bench {

namespace s4u = simgrid::s4u;

void Waker::happen() {
  happened_ = true;
  if (std::exchange(waits_, false)) semaphore_->release();
}

bool Waker::wait(double seconds) {
  if (!happened_) {
    waits_ = true;
    // The event may be signalled at the very time of the timeout.
    if (semaphore_->acquire_timeout(seconds) && !std::exchange(waits_, false)) semaphore_->acquire();
  }
  return std::exchange(happened_, false);
}

void Movers::move(s4u::Host* from, s4u::Host* to, std::uint64_t bytes, std::function<void()> done) {
  if (bytes <= kFew) {
    simgrid::kernel::timer::Timer::set(s4u::Engine::get_clock() + latency(from, to), std::move(done));
    return;
  }
  Mover* mover;
  if (idle_.empty()) {
    mover = movers_.emplace_back(std::make_unique<Mover>()).get();
    s4u::Actor::create("mover", from, [this, mover] { work(*mover); });
  } else {
    mover = idle_.back();
    idle_.pop_back();
  }
  mover->job = {from, to, bytes, std::move(done)};
  mover->has_job->release();
}

double Movers::latency(const s4u::Host* from, const s4u::Host* to) {
  std::optional<double>& known = latencies_[from == to ? 0 : 1];
  if (!known) {
    std::vector<s4u::Link*> links;
    known.emplace(0);
    from->route_to(to, links, &*known);
  }
  return *known;
}

void Movers::work(Mover& mover) {
  s4u::Actor::self()->daemonize();
  for (;;) {
    mover.has_job->acquire();
    const Job job = std::move(mover.job);
    s4u::Comm::sendto(job.from, job.to, job.bytes);
    job.done();
    idle_.push_back(&mover);
  }
}

void SimulatedNetwork::send(std::uint32_t to, unsigned channel, const End& end) {
  if (const auto any = from_any_.find(key(0, to, channel)); any != from_any_.end()) {
    any->second.sends.push_back(end);
    begin_transfers(any->second.sends, any->second.receives);
    return;
  }
  Lane& lane = lanes_[key(end.transport->rank_, to, channel)];
  lane.sends.push_back(end);
  begin_transfers(lane.sends, lane.receives);
}

void SimulatedNetwork::receive(std::uint32_t from, unsigned channel, const End& end) {
  SimulatedTransport& to = *end.transport;
  if (from == ranks::kAnyRank) {
    FromAny& any = from_any(to.rank_, channel, to.ranks_);
    any.receives.push_back(end);
    to.receives_[end.operation] = &any.receives;
    begin_transfers(any.sends, any.receives);
    return;
  }
  Lane& lane = lanes_[key(from, to.rank_, channel)];
  lane.receives.push_back(end);
  to.receives_[end.operation] = &lane.receives;
  begin_transfers(lane.sends, lane.receives);
}

// Returns the FromAny of this channel.  If there is none, makes one with the messages sent so far.
SimulatedNetwork::FromAny& SimulatedNetwork::from_any(std::uint32_t to, unsigned channel,
                                                      std::uint32_t ranks) {
  const auto [at, made] = from_any_.try_emplace(key(0, to, channel));
  for (std::uint32_t from = 0; made && from < ranks; ++from) {
    const auto lane = lanes_.find(key(from, to, channel));
    if (lane == lanes_.end()) continue;
    at->second.sends.insert(at->second.sends.end(), lane->second.sends.begin(), lane->second.sends.end());
    lanes_.erase(lane);
  }
  return at->second;
}

template <class Sends>
void SimulatedNetwork::begin_transfers(Sends& sends, std::vector<End>& receives) {
  while (!sends.empty() && !receives.empty()) {
    const End from = sends.front(), to = receives.front();
    sends.erase(sends.begin());
    receives.erase(receives.begin());
    to.transport->receives_.erase(to.operation);
    to.operation->from = from.transport->rank_;
    movers_.move(from.transport->host_, to.transport->host_, from.bytes.size(), [from, to] {
      const bool fits = from.bytes.size() <= to.bytes.size();
      // Records have no content, and all have the same address.
      if (fits && !from.bytes.empty() && from.bytes.data() != to.bytes.data())
        std::memcpy(to.bytes.data(), from.bytes.data(), from.bytes.size());
      from.transport->end({from.operation, 0, {}});
      to.transport->end(
          {to.operation, fits ? from.bytes.size() : 0, fits ? Status() : Status::from_errno(EMSGSIZE)});
    });
  }
}

Status SimulatedTransport::send(std::uint32_t to, unsigned channel, std::span<const std::byte> bytes,
                                ranks::Operation& op) {
  op = {};
  op.under_way = true;
  network_.send(to, channel_of(channel), {this, &op, {const_cast<std::byte*>(bytes.data()), bytes.size()}});
  return {};
}

Status SimulatedTransport::receive(std::uint32_t from, unsigned channel, std::span<std::byte> room,
                                   ranks::Operation& op) {
  op = {};
  op.under_way = true;
  network_.receive(from, channel_of(channel), {this, &op, room});
  return {};
}

void SimulatedTransport::end(const Ended& ended) {
  ended_.push_back(ended);
  waker_.happen();
}

Status SimulatedTransport::poll() {
  for (const Ended& ended : std::exchange(ended_, {})) {
    ended.operation->bytes = ended.bytes;
    ended.operation->status = ended.status;
    ended.operation->under_way = false;
    ++events;
  }
  return {};
}

void SimulatedTransport::cancel(ranks::Operation& op) {
  const auto found = receives_.find(&op);
  if (found == receives_.end()) return;  // poll() completes it
  std::vector<SimulatedNetwork::End>& receives = *found->second;
  std::erase_if(receives, [&](const SimulatedNetwork::End& end) { return end.operation == &op; });
  receives_.erase(found);
  op.status = Status::from_errno(ECANCELED);
  op.under_way = false;
  ++events;
}

}  // namespace lmdbio::bench
