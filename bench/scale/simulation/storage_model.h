// Models a parallel file system, as clients see it.  Each server answers one request after the other, and
// each client has a limited number of requests in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "bench/scale/simulation/clock.h"

namespace lmdbio::bench {

/// Files are striped over all servers.
struct StorageSettings {
  unsigned servers = 1;
  std::uint64_t stripe_bytes = std::uint64_t{1} << 20;  ///< of a file on one server, before the next one
  double server_bytes_s = 1e9;                          ///< bytes a second
  double request_s = 0;  ///< time of a server for each request, without its bytes
  double latency_s = 0;  ///< of a request in an idle system, without its service: half each way
  /// Standard deviation of the logarithm of the latency, whose median is latency_s.
  double latency_spread = 0;
  unsigned in_flight = 64;       ///< requests of a client; further ones wait in the client
  double client_bytes_s = 1e10;  ///< bandwidth of a client's network
  std::uint64_t seed = 1;        ///< of the random latencies
};

/// Totals of all reads.
struct StorageCounters {
  std::uint64_t requests = 0, bytes = 0;
  std::vector<std::uint64_t> server_requests, server_bytes;
  std::vector<double> server_busy_s;
};

/// A request goes to each server that has a part of it.  A server serves parts in the order of their arrival,
/// each for request_s + bytes / server_bytes_s.  The parts then go through the client's network, one after
/// the other, at client_bytes_s.  The request is done when its last part has arrived.
///
/// One thread.  The clock must outlive the model, and the model must outlive its events in the clock.
class StorageModel {
 public:
  /// Throws std::invalid_argument if a setting is not positive that must be.
  StorageModel(const StorageSettings& settings, std::size_t clients, Clock& clock);
  StorageModel(const StorageModel&) = delete;
  StorageModel& operator=(const StorageModel&) = delete;

  /// Starts a read.  The clock calls `done`.  A read of 0 bytes only takes the overhead of a request to the
  /// server that has the offset.
  void read(std::size_t client, std::uint64_t offset, std::uint64_t bytes, std::function<void()> done);

  const StorageCounters& counters() const noexcept { return counters_; }
  /// Returns the number of a client's requests that are not done.
  std::size_t unfinished(std::size_t client) const { return clients_[client].unfinished; }

 private:
  struct Request {
    std::size_t client;
    std::uint64_t offset, bytes;
    std::function<void()> done;
    std::size_t parts = 0;  ///< not arrived yet
  };
  struct Client {
    std::deque<std::shared_ptr<Request>> waiting;
    unsigned in_flight = 0;
    std::size_t unfinished = 0;
    double network_free_s = 0;
  };

  void start_waiting(std::size_t client);
  void start(const std::shared_ptr<Request>& request);
  void serve(const std::shared_ptr<Request>& request, std::size_t server, std::uint64_t bytes,
             double latency_s);
  void arrived(const std::shared_ptr<Request>& request, std::uint64_t bytes);
  double draw_latency();

  const StorageSettings settings_;
  Clock& clock_;
  std::vector<Client> clients_;
  std::vector<double> server_free_s_;
  StorageCounters counters_;
  std::mt19937_64 random_;
};

}  // namespace lmdbio::bench
