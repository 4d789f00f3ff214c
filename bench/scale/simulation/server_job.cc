#include "bench/scale/simulation/server_job.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "bench/scale/simulation/event_clock.h"
#include "bench/scale/simulation/meter.h"
#include "bench/scale/simulation/server_files.h"
#include "bench/scale/simulation/server_network.h"
#include "bench/scale/simulation/storage_model.h"
#include "lmdbio/serve/server.h"

namespace lmdbio::bench {

namespace {

/// How long a server sleeps, as lmdbio/serve/main.cc: if something is under way, and if nothing is.  Linux
/// wakes it so much later.
constexpr double kBusyNap = 50e-6, kIdleNap = 1e-3, kTimerSlack = 50e-6;
/// A server whose requests are under way steps at least so often, for its time limits.
constexpr double kLongestNap = 10e-3;

/// The clock of the servers, which they ask for the time.
const Clock* servers_clock = nullptr;
std::int64_t now_ns() noexcept { return static_cast<std::int64_t>(servers_clock->seconds() * 1e9) + 1; }

class Node {
 public:
  Node(std::uint32_t number, const ServedFileFacts& file, const WantedPieces& wanted,
       const SimulatedProgram::Settings& program, const serve::Server::Settings& settings,
       StorageModel& storage, ServerTransport& transport, Clock& clock, std::function<void()> ended)
      : clock_(clock),
        transport_(transport),
        files_(file, storage, number, clock, [this] { wake(); }),
        program_(
            number, wanted, file, program, clock, [this] { ask(); }, std::move(ended)) {
    transport_.wake = [this] { wake(); };
    transport_.cpu_s = program_.cpu_s = &cpu_s_;
    const Meter::Use use(&meter_);
    server_ = std::make_unique<serve::Server>(program_, transport_, files_, settings);
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node() = default;

  Status start() {
    {
      const Meter::Use use(&meter_);
      if (const Status st = server_->start(); !st.ok()) return st;
    }
    schedule(clock_.seconds());
    program_.start();
    return {};
  }
  SimulatedProgram& program() noexcept { return program_; }
  const serve::Server& server() const noexcept { return *server_; }
  std::uint64_t most_memory() const noexcept { return meter_.most_bytes; }
  std::uint64_t steps() const noexcept { return steps_; }

 private:
  // A program wakes its server at once, unless the server has too much to do.
  void ask() {
    if (!server_->accepts()) return wake();
    schedule(std::max(clock_.seconds(), free_at_));
  }
  // Everything else is noticed in the first step after one of the naps.
  void wake() {
    const double naps = std::ceil((clock_.seconds() - free_at_) / nap_);
    schedule(free_at_ + std::max(naps, 1.0) * nap_);
  }
  void schedule(double at) {
    if (at >= next_step_) return;
    next_step_ = at;
    clock_.at(at, [this, at] {
      if (at == next_step_) step();  // else it was replaced by an earlier one
    });
  }
  void step() {
    next_step_ = kNever;
    ++steps_;
    cpu_s_ = 0;
    {
      const Meter::Use use(&meter_);
      (void)server_->step();
    }
    free_at_ = clock_.seconds() + cpu_s_;
    cpu_s_ = 0;
    nap_ = (server_->is_busy() ? kBusyNap : kIdleNap) + kTimerSlack;
    if (server_->has_advanced()) return schedule(free_at_);
    if (program_.has_asked() && server_->accepts()) return schedule(free_at_);
    if (transport_.has_work()) return schedule(free_at_ + nap_);
    if (server_->is_busy()) schedule(free_at_ + kLongestNap);
  }

  static constexpr double kNever = 1e300;
  Clock& clock_;
  ServerTransport& transport_;
  Meter meter_;
  SimulatedFiles files_;
  SimulatedProgram program_;
  std::unique_ptr<serve::Server> server_;
  double cpu_s_ = 0, free_at_ = 0, nap_ = kBusyNap, next_step_ = kNever;
  std::uint64_t steps_ = 0;
};

}  // namespace

ServerJobResult run_server_job(const Platform& platform, const ServerJobSettings& settings) {
  EventClock clock;
  servers_clock = &clock;
  const std::uint64_t request = std::uint64_t{1} << 20;  // as ReadQueue::kMostRequest
  const ServedFileFacts file{
      "/shared/data.mdb",
      {{11, 12}, 13, 4096, settings.file_bytes},
      settings.file_bytes,
      platform.largest_request_bytes != 0 ? std::min(request, platform.largest_request_bytes) : request};
  WantedPieces wanted;
  wanted.order = settings.order;
  wanted.record_bytes = settings.record_bytes;
  wanted.file_bytes = settings.file_bytes;
  wanted.nodes = settings.nodes;
  wanted.prepare();
  StorageModel storage(platform.storage, settings.nodes, clock);
  ServerNetwork network({platform.network_bytes_s, platform.network_latency_s}, settings.nodes, clock);
  SimulatedProgram::Settings program;
  program.requests = settings.requests;
  program.copy_bytes_s = platform.cpu.copy_bytes_s;
  serve::Server::Settings server;
  server.memory = settings.memory;
  server.now = now_ns;
  std::uint32_t left = settings.nodes;
  std::vector<std::unique_ptr<Node>> nodes;
  for (std::uint32_t n = 0; n < settings.nodes; ++n)
    nodes.push_back(
        std::make_unique<Node>(n, file, wanted, program, server, storage, network.node(n), clock, [&] {
          if (--left == 0) clock.stop();
        }));
  // All servers have met in a barrier, which takes the time of a message for each doubling of the servers.
  const double met = platform.network_latency_s * std::ceil(std::log2(std::max(settings.nodes, 1u)));
  for (const auto& n : nodes) clock.at(met, [&n] { (void)n->start(); });
  clock.run();

  ServerJobResult r;
  std::uint64_t most_received = 0, most_copied = 0;
  for (std::uint32_t n = 0; n < settings.nodes; ++n) {
    Node& node = *nodes[n];
    const node::ServiceCounts& counts = node.server().counts();
    r.seconds = std::max(r.seconds, node.program().ended_at());
    r.joined_s = std::max(r.joined_s, node.program().opened_at());
    r.longest_silence_s = std::max(r.longest_silence_s, node.program().longest_silence_s());
    r.wanted_bytes += node.program().bytes();
    r.failed += node.program().failed();
    r.read_bytes += counts.read;
    r.alone_bytes += counts.alone;
    r.most_read = std::max(r.most_read, counts.read);
    r.sent += network.node(n).bytes_sent();
    r.most_sent = std::max(r.most_sent, network.node(n).bytes_sent());
    r.steps += node.steps();
    r.most_memory = std::max(r.most_memory, node.most_memory());
    r.most_operations = std::max<std::uint64_t>(r.most_operations, network.node(n).most_operations());
    most_received = std::max(most_received, node.program().bytes());
  }
  most_copied = most_received;
  r.messages = network.messages();
  const StorageSettings& s = platform.storage;
  r.file_system_s = static_cast<double>(settings.file_bytes) / (s.servers * s.server_bytes_s);
  r.links_s =
      static_cast<double>(most_received) * (settings.nodes - 1) / settings.nodes / platform.network_bytes_s;
  r.copies_s = static_cast<double>(most_copied) / platform.cpu.copy_bytes_s;
  return r;
}

}  // namespace lmdbio::bench
