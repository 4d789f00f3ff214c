#include "bench/simulation/simulated_network.h"

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
    // It may happen at the time at which this ends.
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

SimulatedNetwork::Lane& SimulatedNetwork::lane(std::uint32_t from, std::uint32_t to, unsigned channel) {
  return lanes_[(std::uint64_t{from} << 36) + (std::uint64_t{to} << 8) + channel];
}

void SimulatedNetwork::begin_transfers(Lane& lane) {
  while (!lane.sends.empty() && !lane.receives.empty()) {
    const End from = lane.sends.front(), to = lane.receives.front();
    lane.sends.erase(lane.sends.begin());
    lane.receives.erase(lane.receives.begin());
    to.transport->receives_.erase(to.operation);
    movers_.move(from.transport->host_, to.transport->host_, from.bytes.size(), [from, to] {
      const bool fits = from.bytes.size() <= to.bytes.size();
      // Records have no bytes, and are all at one address.
      if (fits && !from.bytes.empty() && from.bytes.data() != to.bytes.data())
        std::memcpy(to.bytes.data(), from.bytes.data(), from.bytes.size());
      from.transport->end({from.operation, 0, {}});
      to.transport->end(
          {to.operation, fits ? from.bytes.size() : 0, fits ? Status() : Status::from_errno(EMSGSIZE)});
    });
  }
}

void SimulatedTransport::begin(SimulatedNetwork::Lane& lane, std::vector<SimulatedNetwork::End>& ends,
                               std::span<std::byte> bytes, dist::Operation& op) {
  op = {};
  op.under_way = true;
  ends.push_back({this, &op, bytes});
  network_.begin_transfers(lane);
}

Status SimulatedTransport::send(std::uint32_t to, unsigned channel, std::span<const std::byte> bytes,
                                dist::Operation& op) {
  SimulatedNetwork::Lane& lane = network_.lane(rank_, to, channel_of(channel));
  begin(lane, lane.sends, {const_cast<std::byte*>(bytes.data()), bytes.size()}, op);
  return {};
}

Status SimulatedTransport::receive(std::uint32_t from, unsigned channel, std::span<std::byte> room,
                                   dist::Operation& op) {
  SimulatedNetwork::Lane& lane = network_.lane(from, rank_, channel_of(channel));
  receives_[&op] = &lane;
  begin(lane, lane.receives, room, op);
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

void SimulatedTransport::cancel(dist::Operation& op) {
  const auto found = receives_.find(&op);
  if (found == receives_.end()) return;  // poll() finds its end
  std::vector<SimulatedNetwork::End>& receives = found->second->receives;
  std::erase_if(receives, [&](const SimulatedNetwork::End& end) { return end.operation == &op; });
  receives_.erase(found);
  op.status = Status::from_errno(ECANCELED);
  op.under_way = false;
  ++events;
}

}  // namespace lmdbio::bench
