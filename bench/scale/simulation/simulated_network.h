// Messages of LMDBIO's streams between simulated ranks.
//
// lmdbio/ranks/mpi_transport.h does the same with MPI.  MPI does not notify a rank of a message, so the rank
// polls.  Some thousand polls a second take long to simulate, so a simulated rank is notified.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <simgrid/s4u.hpp>
#include <span>
#include <unordered_map>
#include <vector>

#include "lmdbio/ranks/message.h"
#include "lmdbio/ranks/transport.h"

namespace lmdbio::bench {

/// An event that one actor waits for.  Another actor or a timer signals it.
class Waker {
 public:
  /// The longest wait, in seconds of simulated time.
  static constexpr double kForever = 1e6;

  /// Signals the event.
  void happen();
  /// Waits for a signal, for at most `seconds`.  A signal since the last call counts.  Returns whether there
  /// was one.
  bool wait(double seconds);

 private:
  const simgrid::s4u::SemaphorePtr semaphore_ = simgrid::s4u::Semaphore::create(0);
  bool waits_ = false, happened_ = false;
};

/// Moves bytes from one host to another through SimGrid's network.  Messages of up to kFew bytes only take
/// the latency: they are no load, and there are many of them.
class Movers {
 public:
  /// Calls `done` when the bytes have arrived.
  void move(simgrid::s4u::Host* from, simgrid::s4u::Host* to, std::uint64_t bytes,
            std::function<void()> done);

 private:
  struct Job {
    simgrid::s4u::Host *from = nullptr, *to = nullptr;
    std::uint64_t bytes = 0;
    std::function<void()> done;
  };
  /// An actor that sends one job at a time, and waits until the bytes were received.
  struct Mover {
    const simgrid::s4u::SemaphorePtr has_job = simgrid::s4u::Semaphore::create(0);
    Job job;
  };
  static constexpr std::uint64_t kFew = 4096;
  double latency(const simgrid::s4u::Host* from, const simgrid::s4u::Host* to);
  void work(Mover& mover);
  std::optional<double> latencies_[2];  ///< within a host, and between two hosts; all routes are alike
  std::vector<std::unique_ptr<Mover>> movers_;
  std::vector<Mover*> idle_;
};

class SimulatedTransport;

/// The state that the transports of a job share.
class SimulatedNetwork {
 public:
  SimulatedNetwork() = default;
  SimulatedNetwork(const SimulatedNetwork&) = delete;
  SimulatedNetwork& operator=(const SimulatedNetwork&) = delete;

 private:
  friend class SimulatedTransport;
  struct End {
    SimulatedTransport* transport = nullptr;
    ranks::Operation* operation = nullptr;
    std::span<std::byte> bytes;  ///< a send only reads them
  };
  /// The operations on one channel from one rank to another, in the order in which they were started.
  struct Lane {
    std::vector<End> sends, receives;  ///< few; a deque takes more memory
  };
  /// The operations on one channel on which a rank receives from any rank.
  struct FromAny {
    std::vector<End> receives;
    std::deque<End> sends;  ///< of all ranks, in the order in which they were started
  };
  static std::uint64_t key(std::uint32_t from, std::uint32_t to, unsigned channel) noexcept {
    return (std::uint64_t{from} << 36) + (std::uint64_t{to} << 8) + channel;
  }
  void send(std::uint32_t to, unsigned channel, const End& end);
  void receive(std::uint32_t from, unsigned channel, const End& end);
  FromAny& from_any(std::uint32_t to, unsigned channel, std::uint32_t ranks);
  template <class Sends>
  void begin_transfers(Sends& sends, std::vector<End>& receives);

  Movers movers_;
  std::unordered_map<std::uint64_t, Lane> lanes_;
  std::unordered_map<std::uint64_t, FromAny> from_any_;
};

class SimulatedTransport final : public ranks::Transport {
 public:
  /// Makes the transport of the calling rank.  `network` and `waker` must outlive the transport, which
  /// signals `waker` when an operation has ended.  Only transports with the same `port` reach each other.
  SimulatedTransport(SimulatedNetwork& network, std::uint32_t rank, std::uint32_t ranks, Waker& waker,
                     unsigned port = 0)
      : network_(network),
        port_(port),
        rank_(rank),
        ranks_(ranks),
        waker_(waker),
        host_(simgrid::s4u::this_actor::get_host()) {}
  SimulatedTransport(const SimulatedTransport&) = delete;
  SimulatedTransport& operator=(const SimulatedTransport&) = delete;
  /// No operation may be in progress.
  ~SimulatedTransport() override = default;

  std::uint32_t rank() const noexcept override { return rank_; }
  std::uint32_t ranks() const noexcept override { return ranks_; }
  Status send(std::uint32_t to, unsigned channel, std::span<const std::byte> bytes,
              ranks::Operation& op) override;
  Status receive(std::uint32_t from, unsigned channel, std::span<std::byte> room,
                 ranks::Operation& op) override;
  /// Completes the operations that have ended: they become done() only in this call, as with MPI.
  Status poll() override;
  void cancel(ranks::Operation& op) override;

 private:
  friend class SimulatedNetwork;
  struct Ended {
    ranks::Operation* operation;
    std::size_t bytes;
    Status status;
  };
  void end(const Ended& ended);

  unsigned channel_of(unsigned channel) const noexcept { return port_ * ranks::kChannels + channel; }

  SimulatedNetwork& network_;
  const unsigned port_;
  const std::uint32_t rank_, ranks_;
  Waker& waker_;
  simgrid::s4u::Host* const host_;
  std::vector<Ended> ended_;
  /// Receives that have no message yet, and the list that each is in.
  std::unordered_map<ranks::Operation*, std::vector<SimulatedNetwork::End>*> receives_;
};

}  // namespace lmdbio::bench
