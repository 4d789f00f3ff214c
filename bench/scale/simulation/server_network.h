// Messages between the servers of nodes (lmdbio/serve), over a modelled network.
//
// As MPI does, it advances messages only within calls of poll() by the two servers.  The bytes of a large
// message are sent after both have agreed, and then move without them, as with RDMA.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bench/scale/simulation/clock.h"
#include "lmdbio/ranks/message.h"
#include "lmdbio/ranks/transport.h"

namespace lmdbio::bench {

class ServerTransport;

/// Each node has a link for each direction.  A link carries one large message after the other.  Between the
/// links, messages do not disturb each other.
class ServerNetwork {
 public:
  struct Settings {
    double bytes_s, latency_s;
    /// CPU time of a call of poll(), and of each operation in it; of each other call; in seconds.
    double poll_s = 0.5e-6, operation_s = 5e-9, call_s = 0.5e-6;
  };
  /// `clock` must outlive the network.
  ServerNetwork(const Settings& settings, std::uint32_t nodes, Clock& clock);
  ~ServerNetwork();
  ServerNetwork(const ServerNetwork&) = delete;
  ServerNetwork& operator=(const ServerNetwork&) = delete;
  ServerTransport& node(std::uint32_t node) { return *nodes_[node]; }
  std::uint64_t messages() const noexcept { return messages_; }

 private:
  friend class ServerTransport;
  const Settings settings_;
  Clock& clock_;
  std::uint64_t messages_ = 0;
  std::vector<std::unique_ptr<ServerTransport>> nodes_;
};

/// The transport of one node.
class ServerTransport final : public ranks::Transport {
 public:
  ServerTransport(ServerNetwork& network, std::uint32_t node) noexcept : network_(network), rank_(node) {}
  ServerTransport(const ServerTransport&) = delete;
  ServerTransport& operator=(const ServerTransport&) = delete;
  ~ServerTransport() override = default;

  std::uint32_t rank() const noexcept override { return rank_; }
  std::uint32_t ranks() const noexcept override { return static_cast<std::uint32_t>(network_.nodes_.size()); }
  Status send(std::uint32_t to, unsigned channel, std::span<const std::byte> bytes,
              ranks::Operation& op) override;
  Status receive(std::uint32_t from, unsigned channel, std::span<std::byte> room,
                 ranks::Operation& op) override;
  Status poll() override;
  /// Simulated servers do not end.
  void cancel(ranks::Operation&) override {}

  /// Called when poll() has something to do.
  std::function<void()> wake;
  /// CPU time of this node since the time of the clock, in seconds: calls add to it, and what they start
  /// starts so much later.
  double* cpu_s = nullptr;
  bool has_work() const noexcept { return !inbox_.empty(); }
  std::uint64_t bytes_sent() const noexcept { return bytes_sent_; }
  std::size_t most_operations() const noexcept { return most_operations_; }

 private:
  struct Message {
    std::uint32_t from, to;
    unsigned channel;
    std::span<const std::byte> bytes;
    ranks::Operation* send;
    ranks::Operation* receive = nullptr;
    std::span<std::byte> room{};
    bool sent = false, received = false;
  };
  enum class Packet : unsigned char { arrived, agreed, sent, received };
  struct Receive {
    ranks::Operation* op;
    std::span<std::byte> room;
  };
  struct Lane {
    std::deque<Receive> receives;
    std::deque<Message*> messages;  ///< without a receive
  };
  Lane& lane(std::uint32_t from, unsigned channel);
  void begin(Message* message);
  void transfer(Message* message);
  static void copy(const Message& message);
  void put(std::uint32_t node, Packet packet, Message* message, double after_s);
  void end(ranks::Operation& op);
  double start() const { return network_.clock_.seconds() + *cpu_s; }

  ServerNetwork& network_;
  const std::uint32_t rank_;
  std::vector<std::pair<Packet, Message*>> inbox_;
  std::array<Lane, ranks::kChannels> from_any_;
  std::array<bool, ranks::kChannels> is_from_any_{};
  std::unordered_map<std::uint64_t, Lane> lanes_;  ///< by sender and channel
  double out_free_s_ = 0, in_free_s_ = 0;
  std::uint64_t bytes_sent_ = 0;
  std::size_t operations_ = 0, most_operations_ = 0;
};

}  // namespace lmdbio::bench
