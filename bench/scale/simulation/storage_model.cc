#include "bench/scale/simulation/storage_model.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace lmdbio::bench {

StorageModel::StorageModel(const StorageSettings& settings, std::size_t clients, Clock& clock)
    : settings_(settings),
      clock_(clock),
      clients_(clients),
      server_free_s_(settings.servers, 0.0),
      random_(settings.seed) {
  const auto positive = [](bool is, const char* what) {
    if (!is) throw std::invalid_argument(std::string("a file system needs ") + what);
  };
  positive(settings.servers > 0, "servers");
  positive(settings.stripe_bytes > 0, "stripes of at least a byte");
  positive(settings.server_bytes_s > 0 && settings.client_bytes_s > 0, "bandwidth");
  positive(settings.in_flight > 0, "clients that have a request in flight");
  positive(settings.request_s >= 0 && settings.latency_s >= 0 && settings.latency_spread >= 0,
           "times that are not negative");
  counters_.server_requests.resize(settings.servers);
  counters_.server_bytes.resize(settings.servers);
  counters_.server_busy_s.resize(settings.servers);
}

void StorageModel::read(std::size_t client, std::uint64_t offset, std::uint64_t bytes,
                        std::function<void()> done) {
  ++counters_.requests;
  counters_.bytes += bytes;
  ++clients_[client].unfinished;
  clients_[client].waiting.push_back(
      std::make_shared<Request>(Request{client, offset, bytes, std::move(done)}));
  start_waiting(client);
}

void StorageModel::start_waiting(std::size_t client) {
  Client& c = clients_[client];
  while (!c.waiting.empty() && c.in_flight < settings_.in_flight) {
    const std::shared_ptr<Request> request = std::move(c.waiting.front());
    c.waiting.pop_front();
    ++c.in_flight;
    start(request);
  }
}

double StorageModel::draw_latency() {
  if (settings_.latency_spread == 0 || settings_.latency_s == 0) return settings_.latency_s;
  return std::lognormal_distribution(std::log(settings_.latency_s), settings_.latency_spread)(random_);
}

void StorageModel::start(const std::shared_ptr<Request>& request) {
  // All stripes of a server are one part.
  const std::uint64_t stripe = settings_.stripe_bytes, servers = settings_.servers;
  const std::uint64_t first = request->offset / stripe;
  const std::uint64_t last = (request->offset + std::max<std::uint64_t>(request->bytes, 1) - 1) / stripe;
  const std::uint64_t concerned = std::min(last - first + 1, servers);
  std::vector<std::uint64_t> of_server(concerned);
  for (std::uint64_t s = first; s <= last; ++s) {
    const std::uint64_t begin = std::max(s * stripe, request->offset);
    const std::uint64_t end = std::min((s + 1) * stripe, request->offset + request->bytes);
    of_server[(s - first) % servers] += end - begin;
  }
  request->parts = concerned;
  const double latency = draw_latency();
  for (std::uint64_t i = 0; i < concerned; ++i) {
    const std::size_t server = (first + i) % servers;
    clock_.at(clock_.seconds() + latency / 2, [this, request, server, bytes = of_server[i], latency] {
      serve(request, server, bytes, latency);
    });
  }
}

void StorageModel::serve(const std::shared_ptr<Request>& request, std::size_t server, std::uint64_t bytes,
                         double latency_s) {
  const double takes = settings_.request_s + static_cast<double>(bytes) / settings_.server_bytes_s;
  double& free_s = server_free_s_[server];
  free_s = std::max(free_s, clock_.seconds()) + takes;
  ++counters_.server_requests[server];
  counters_.server_bytes[server] += bytes;
  counters_.server_busy_s[server] += takes;
  clock_.at(free_s + latency_s / 2, [this, request, bytes] { arrived(request, bytes); });
}

void StorageModel::arrived(const std::shared_ptr<Request>& request, std::uint64_t bytes) {
  Client& c = clients_[request->client];
  c.network_free_s =
      std::max(c.network_free_s, clock_.seconds()) + static_cast<double>(bytes) / settings_.client_bytes_s;
  clock_.at(c.network_free_s, [this, request] {
    if (--request->parts != 0) return;
    Client& client = clients_[request->client];
    --client.in_flight;
    --client.unfinished;
    start_waiting(request->client);
    request->done();
  });
}

}  // namespace lmdbio::bench
