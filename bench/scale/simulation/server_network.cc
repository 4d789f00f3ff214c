#include "bench/scale/simulation/server_network.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "bench/scale/simulation/meter.h"

namespace lmdbio::bench {

namespace {

/// Messages of up to so many bytes are sent without an agreement, and are no load for the links.
constexpr std::size_t kFew = 4096;
/// Longer messages have bytes of files, which have no content.
constexpr std::size_t kContents = std::size_t{32} << 10;

}  // namespace

ServerNetwork::ServerNetwork(const Settings& settings, std::uint32_t nodes, Clock& clock)
    : settings_(settings), clock_(clock) {
  for (std::uint32_t n = 0; n < nodes; ++n) nodes_.push_back(std::make_unique<ServerTransport>(*this, n));
}

ServerNetwork::~ServerNetwork() = default;

ServerTransport::Lane& ServerTransport::lane(std::uint32_t from, unsigned channel) {
  if (is_from_any_[channel]) return from_any_[channel];
  return lanes_[std::uint64_t{from} * ranks::kChannels + channel];
}

void ServerTransport::put(std::uint32_t node, Packet packet, Message* message, double after_s) {
  ServerTransport& to = *network_.nodes_[node];
  network_.clock_.at(start() + after_s, [&to, packet, message] {
    to.inbox_.emplace_back(packet, message);
    to.wake();
  });
}

Status ServerTransport::send(std::uint32_t to, unsigned channel, std::span<const std::byte> bytes,
                             ranks::Operation& op) {
  const Meter::Pause pause;
  *cpu_s += network_.settings_.call_s;
  op = {};
  op.under_way = true;
  most_operations_ = std::max(most_operations_, ++operations_);
  ++network_.messages_;
  bytes_sent_ += bytes.size();
  put(to, Packet::arrived, new Message{rank_, to, channel, bytes, &op}, network_.settings_.latency_s);
  return {};
}

Status ServerTransport::receive(std::uint32_t from, unsigned channel, std::span<std::byte> room,
                                ranks::Operation& op) {
  const Meter::Pause pause;
  *cpu_s += network_.settings_.call_s;
  op = {};
  op.under_way = true;
  most_operations_ = std::max(most_operations_, ++operations_);
  if (from == ranks::kAnyRank) is_from_any_[channel] = true;
  Lane& l = lane(from, channel);
  l.receives.push_back({&op, room});
  if (l.messages.empty()) return {};
  Message* const first = l.messages.front();
  l.messages.pop_front();
  begin(first);
  return {};
}

// The receiver has a message and a receive for it.
void ServerTransport::begin(Message* m) {
  Lane& l = lane(m->from, m->channel);
  m->receive = l.receives.front().op;
  m->room = l.receives.front().room;
  l.receives.pop_front();
  if (!is_from_any_[m->channel] && l.receives.empty() && l.messages.empty())
    lanes_.erase(std::uint64_t{m->from} * ranks::kChannels + m->channel);
  if (m->bytes.size() <= kFew) {
    copy(*m);
    inbox_.emplace_back(Packet::received, m);
    put(m->from, Packet::sent, m, network_.settings_.latency_s);
  } else {
    put(m->from, Packet::agreed, m, network_.settings_.latency_s);
  }
}

// The sender knows that the receiver waits for the bytes.
void ServerTransport::transfer(Message* m) {
  const double takes = static_cast<double>(m->bytes.size()) / network_.settings_.bytes_s;
  const double begins = std::max(start(), out_free_s_);
  out_free_s_ = begins + takes;
  network_.clock_.at(begins + network_.settings_.latency_s, [this, m, takes] {
    ServerTransport& to = *network_.nodes_[m->to];
    to.in_free_s_ = std::max(network_.clock_.seconds(), to.in_free_s_) + takes;
    network_.clock_.at(to.in_free_s_, [this, m, &to] {
      copy(*m);
      to.inbox_.emplace_back(Packet::received, m);
      to.wake();
      inbox_.emplace_back(Packet::sent, m);
      wake();
    });
  });
}

// Copies the content, before the sender may free it.
void ServerTransport::copy(const Message& m) {
  if (m.bytes.size() <= std::min(kContents, m.room.size()))
    std::memcpy(m.room.data(), m.bytes.data(), m.bytes.size());
}

void ServerTransport::end(ranks::Operation& op) {
  op.under_way = false;
  --operations_;
  ++events;
}

Status ServerTransport::poll() {
  const Meter::Pause pause;
  *cpu_s += network_.settings_.poll_s + network_.settings_.operation_s * static_cast<double>(operations_);
  // begin() may add packets.
  for (std::size_t i = 0; i < inbox_.size(); ++i) {
    const auto [packet, m] = inbox_[i];
    switch (packet) {
      case Packet::arrived: {
        Lane& l = lane(m->from, m->channel);
        if (l.messages.empty() && !l.receives.empty())
          begin(m);
        else
          l.messages.push_back(m);
        continue;
      }
      case Packet::agreed:
        transfer(m);
        continue;
      case Packet::sent:
        m->sent = true;
        end(*m->send);
        break;
      case Packet::received:
        m->received = true;
        m->receive->from = m->from;
        m->receive->bytes = m->bytes.size();
        if (m->bytes.size() > m->room.size()) m->receive->status = Status::from_errno(EMSGSIZE);
        end(*m->receive);
        break;
    }
    if (m->sent && m->received) delete m;
  }
  inbox_.clear();
  return {};
}

}  // namespace lmdbio::bench
