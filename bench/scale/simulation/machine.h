// State that the simulated ranks of a job share.  The ranks are actors of one process, and one runs at a
// time, so the state needs no locks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <simgrid/kernel/Timer.hpp>
#include <simgrid/s4u.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/scale/simulation/clock.h"
#include "bench/scale/simulation/content_records.h"
#include "bench/scale/simulation/page_cache.h"
#include "bench/scale/simulation/platform.h"
#include "bench/scale/simulation/run_queue.h"
#include "bench/scale/simulation/simulated_network.h"
#include "bench/scale/simulation/storage_model.h"
#include "bench/scale/simulation/synthetic_tree.h"
#include "bench/scale/world.h"

namespace lmdbio::bench {

namespace s4u = simgrid::s4u;

class SimulatorClock final : public Clock {
 public:
  double seconds() const override { return s4u::Engine::get_clock(); }
  void at(double seconds, std::function<void()> what) override {
    simgrid::kernel::timer::Timer::set(seconds, std::move(what));
  }
};

/// A barrier for ranks that go on with something else while they wait.
class Meeting {
 public:
  /// Returns how many times all ranks have arrived.
  std::uint64_t held() const noexcept { return held_; }
  /// A rank arrives.  When all `ranks` have arrived, wakes each by its `waker`, which must live until then.
  void come(Waker& waker, std::size_t ranks) {
    waiting_.push_back(&waker);
    if (waiting_.size() != ranks) return;
    ++held_;
    for (Waker* const w : std::exchange(waiting_, {})) w->happen();
  }

 private:
  std::uint64_t held_ = 0;
  std::vector<Waker*> waiting_;
};

/// The file system and the database.
class Machine {
 public:
  /// Throws std::invalid_argument.
  explicit Machine(const std::string& platform)
      : platform_(read_platform(platform)),
        storage_(platform_.storage, s4u::Engine::get_instance()->get_host_count(), clock_) {
    for (s4u::Host* const host : s4u::Engine::get_instance()->get_all_hosts())
      nodes_.emplace(host->get_name(), nodes_.size());
  }
  /// Returns the node of the calling rank.
  std::size_t node() const { return nodes_.at(s4u::this_actor::get_host()->get_name()); }
  /// Adds a rank of the job to the calling rank's node.
  void add_rank(int rank) { ranks_[node()].push_back(rank); }
  /// Returns the ranks of the calling rank's node, sorted.  Call it after all ranks were added.
  std::vector<int> ranks() {
    std::vector<int>& ranks = ranks_[node()];
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }
  /// Throws NotModelled, std::invalid_argument.
  void make_database(const Data& data) {
    if (!data.content)
      throw std::invalid_argument(
          "it is one of those that are made: --make, --bytes and --multiple say which");
    records_ = std::make_unique<ContentRecords>(*data.content, data.bytes, data.multiple);
    SyntheticTree::Writing writing;
    writing.commit_interval = kRecordsOfCommit;
    writing.map_bytes = map_bytes(*data.content, data.bytes, data.multiple);
    tree_ = std::make_unique<SyntheticTree>(*records_, writing);
  }
  std::uint64_t memory_of_node() const noexcept { return platform_.node_memory_bytes; }
  double memory_latency_s() const noexcept { return platform_.memory_latency_s; }
  const CpuCosts& cpu_costs() const noexcept { return platform_.cpu; }
  /// Returns the cores of a node.
  RunQueue& cores(std::size_t node) {
    auto& cores = cores_[platform_.emulated ? 0 : node];
    if (cores == nullptr) cores = std::make_unique<RunQueue>(platform_.cores, platform_.cpu.wake_s);
    return *cores;
  }
  const SyntheticTree& tree() const { return *tree_; }
  const Records& records() const { return *records_; }

  void read(std::size_t node, std::uint64_t offset, std::uint64_t bytes, std::function<void()> done) {
    const std::uint64_t most = platform_.largest_request_bytes != 0 ? platform_.largest_request_bytes : bytes;
    use_[node].bytes += bytes;
    if (bytes <= most) {
      ++use_[node].requests;
      return read_one(node, offset, bytes, std::move(done));
    }
    // The client divides the request, and sends all parts at once.
    const auto left = std::make_shared<std::uint64_t>((bytes - 1) / most + 1);
    use_[node].requests += *left;
    const auto all_done = std::make_shared<std::function<void()>>(std::move(done));
    for (std::uint64_t at = 0; at < bytes; at += most)
      read_one(node, offset + at, std::min(most, bytes - at), [left, all_done] {
        if (--*left == 0) (*all_done)();
      });
  }
  /// Returns the page cache of the database on a node.
  PageCache& page_cache(std::size_t node) {
    auto& cache = caches_[node];
    if (cache == nullptr)
      cache = std::make_unique<PageCache>(
          tree_->bytes() / PageCache::kPageBytes, platform_.read_ahead_bytes / PageCache::kPageBytes,
          [this, node](PageCache::Page first, PageCache::Page count) {
            read(node, first * PageCache::kPageBytes, count * PageCache::kPageBytes,
                 [cache = caches_[node].get(), first, count] { cache->arrived(first, count); });
          },
          platform_.node_memory_bytes / PageCache::kPageBytes, platform_.kernel);
    return *cache;
  }
  StorageUse use(std::size_t node) {
    StorageUse use = use_[node];
    use.most_in_flight = most_in_flight_;
    return use;
  }
  /// Called when a rank has opened the database: restarts the maximum of requests in flight.
  void begin_to_count_in_flight() noexcept { most_in_flight_ = in_flight_; }
  SimulatedNetwork& network() noexcept { return network_; }
  Meeting& meeting() noexcept { return meeting_; }

 private:
  void read_one(std::size_t node, std::uint64_t offset, std::uint64_t bytes, std::function<void()> done) {
    most_in_flight_ = std::max(most_in_flight_, ++in_flight_);
    storage_.read(node, offset, bytes, [this, node, bytes, done = std::move(done)]() mutable {
      --in_flight_;
      if (!platform_.emulated) return done();
      // The model of the file system includes the work of a server, but no wait for a core.
      const Platform::Emulated& e = *platform_.emulated;
      const double now = clock_.seconds(), work_s = e.request_s + static_cast<double>(bytes) / e.bytes_s;
      const double late_s = cores(node).run(now, work_s) - now - work_s;
      if (late_s <= 0) return done();
      clock_.at(now + late_s, std::move(done));
    });
  }

  const Platform platform_;
  SimulatorClock clock_;
  StorageModel storage_;
  std::map<std::string, std::size_t> nodes_;
  std::map<std::size_t, std::vector<int>> ranks_;
  std::map<std::size_t, StorageUse> use_;
  std::uint64_t in_flight_ = 0, most_in_flight_ = 0;
  std::map<std::size_t, std::unique_ptr<PageCache>> caches_;
  std::map<std::size_t, std::unique_ptr<RunQueue>> cores_;
  std::unique_ptr<ContentRecords> records_;
  std::unique_ptr<SyntheticTree> tree_;
  SimulatedNetwork network_;
  Meeting meeting_;
};

/// Requests of one rank, which wait() waits for together.
class SimulatedReads {
 public:
  /// `ended` is called whenever the last request in flight has ended.
  explicit SimulatedReads(Machine& machine, std::function<void()> ended = {})
      : machine_(machine), node_(machine.node()), ended_(std::move(ended)) {}
  SimulatedReads(const SimulatedReads&) = delete;
  SimulatedReads& operator=(const SimulatedReads&) = delete;
  ~SimulatedReads() { wait(); }

  void start(std::uint64_t offset, std::uint64_t bytes) {
    ++in_flight_;
    machine_.read(node_, offset, bytes, [this] {
      if (--in_flight_ != 0) return;
      if (ended_) ended_();
      if (std::exchange(waits_, false)) done_->release();
    });
  }
  std::size_t in_flight() const noexcept { return in_flight_; }
  void wait() {
    if (in_flight_ == 0) return;
    waits_ = true;
    done_->acquire();
  }

 private:
  Machine& machine_;
  const std::size_t node_;
  const std::function<void()> ended_;
  std::size_t in_flight_ = 0;
  bool waits_ = false;
  // Not Actor::suspend, because it also suspends the messages of the actor.
  const s4u::SemaphorePtr done_ = s4u::Semaphore::create(0);
};

}  // namespace lmdbio::bench
