// The world of ranks that SimGrid's SMPI simulates.  The ranks are actors of one process, and one runs at a
// time, so shared state needs no locks.
#include <mpi.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <map>
#include <simgrid/s4u.hpp>
#include <utility>
#include <vector>

#include "bench/common.h"
#include "bench/scale/simulation/machine.h"
#include "bench/scale/simulation/simulated_lmdb.h"
#include "bench/scale/simulation/simulated_streams.h"
#include "bench/scale/world.h"

namespace lmdbio::bench {

namespace {

namespace s4u = simgrid::s4u;

class SimulatedStorage final : public Storage {
 public:
  SimulatedStorage(Machine& machine, CpuTime& cpu) : machine_(machine), cpu_(cpu), reads_(machine) {}

  std::uint64_t bytes() const override { return machine_.tree().bytes(); }
  void copy_mapped(Place value, std::byte*) override {
    if (mapping_ == nullptr) mapping_ = std::make_unique<SimulatedMapping>(machine_, cpu_);
    mapping_->copy(value.offset, value.bytes);
  }
  void start(Span span, std::byte* to) override {
    const std::uint64_t bytes = std::min(span.bytes, this->bytes() - span.offset);
    machine_.tree().make_tree_pages(span.offset, {to, static_cast<std::size_t>(bytes)});
    reads_.start(span.offset, bytes);
    counters_.count(bytes, reads_.in_flight());
  }
  void wait() override { reads_.wait(); }
  IoCounters counters() const override { return counters_; }

 private:
  Machine& machine_;
  CpuTime& cpu_;
  SimulatedReads reads_;
  std::unique_ptr<SimulatedMapping> mapping_;
  IoCounters counters_;
};

/// Memory that takes only address space, as long as no rank writes to it.  Real ranks of a node wait for each
/// other in shared memory.  So this class sends no messages, which would take simulated time, and long to
/// simulate.
class SimulatedMemory final : public NodeMemory {
 public:
  SimulatedMemory(MPI_Comm ranks, double latency_s) {
    int rank = 0, count = 1;
    MPI_Comm_rank(ranks, &rank);
    MPI_Comm_size(ranks, &count);
    is_first_ = rank == 0;
    wait_s_ = latency_s * std::bit_width(static_cast<unsigned>(count - 1));
    if (is_first_) shared_ = std::make_shared<Shared>(static_cast<unsigned>(count));
    std::uint64_t at = reinterpret_cast<std::uintptr_t>(&shared_);
    MPI_Bcast(&at, 1, MPI_UINT64_T, 0, ranks);
    if (!is_first_) shared_ = *reinterpret_cast<const std::shared_ptr<Shared>*>(at);
    shared_->barrier->wait();  // the first rank's shared_ lives until all have a copy
  }

  void reserve(std::uint64_t bytes) override {
    if (is_first_) shared_->reserve(bytes);
    wait_for_all();
  }
  /// Takes the time of a dissemination barrier.
  void wait_for_all() override {
    shared_->barrier->wait();
    if (wait_s_ > 0) s4u::this_actor::sleep_for(wait_s_);
  }
  std::byte* bytes() const noexcept override { return shared_->bytes; }

 private:
  struct Shared {
    explicit Shared(unsigned ranks) : barrier(s4u::Barrier::create(ranks)) {}
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;
    ~Shared() { free(); }
    void reserve(std::uint64_t wanted) {
      if (wanted <= room) return;
      free();
      room = wanted + wanted / 4;
      void* const memory =
          ::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) die_errno("memory of a node");
      bytes = static_cast<std::byte*>(memory);
    }
    void free() {
      if (room != 0) ::munmap(bytes, room);
      room = 0;
    }
    const s4u::BarrierPtr barrier;
    std::byte* bytes = nullptr;
    std::uint64_t room = 0;
  };
  bool is_first_ = false;
  double wait_s_ = 0;
  std::shared_ptr<Shared> shared_;
};

class SimulatedWorld final : public World {
 public:
  explicit SimulatedWorld(std::shared_ptr<Machine> machine)
      : machine_(std::move(machine)), cpu_(machine_->cpu_costs(), machine_->cores(machine_->node())) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    machine_->add_rank(rank_);
  }

  void prepare(const Data& data, Order) override {
    try {
      machine_->make_database(data);
    } catch (const std::exception& e) {
      die("%s: cannot be simulated: %s", data.database.c_str(), e.what());
    }
  }
  std::vector<std::uint64_t> sums(const Data&) override { return {}; }

  double seconds() override {
    cpu_.settle();
    return s4u::Engine::get_clock();
  }
  /// Meanwhile the work of LMDBIO's thread goes on.
  void sleep(double seconds) override {
    cpu_.settle();
    const std::shared_ptr<Background> background = background_.lock();
    if (background == nullptr) return s4u::this_actor::sleep_for(seconds);
    background->go_on(seconds);
  }
  void wait_for_all(Loader&) override {
    cpu_.settle();
    if (const std::shared_ptr<Background> background = background_.lock(); background != nullptr)
      background->go_on_until_all_have_come();
    MPI_Barrier(MPI_COMM_WORLD);
  }
  MPI_Comm split_by_node() override {
    // MPI_Comm_split takes time that grows with the square of the ranks.
    MPI_Barrier(MPI_COMM_WORLD);  // all have been added
    const std::vector<int> ranks = machine_->ranks();
    MPI_Group all, these;
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &these);
    MPI_Comm node;
    MPI_Comm_create_group(MPI_COMM_WORLD, these, 0, &node);
    MPI_Group_free(&these);
    MPI_Group_free(&all);
    return node;
  }
  std::unique_ptr<NodeMemory> share_memory(MPI_Comm ranks) override {
    return std::make_unique<SimulatedMemory>(ranks, machine_->memory_latency_s());
  }

  std::unique_ptr<Storage> open(const std::string&) override {
    return std::make_unique<SimulatedStorage>(*machine_, cpu_);
  }
  std::unique_ptr<LmdbAccess> lmdb(const std::string&, const std::string&) override {
    return std::make_unique<SimulatedLmdb>(*machine_, cpu_);
  }
  std::unique_ptr<Loader> library_loader(const LoaderSettings& settings) override {
    if (settings.strategy.exchange != Strategy::Exchange::redistributed)
      die("strategies with the index and without redistribution cannot be simulated yet");
    auto loader = std::make_unique<SimulatedStreams>(settings, *machine_, cpu_);
    background_ = loader->background();
    return loader;
  }
  bool has_values() const override { return false; }

  ProcessFacts process() override { return {}; }
  CpuUse cpu_use() override { return {}; }
  std::optional<StorageUse> storage_use() override { return machine_->use(machine_->node()); }

 private:
  const std::shared_ptr<Machine> machine_;
  CpuTime cpu_;
  int rank_ = 0;
  std::weak_ptr<Background> background_;
};

class SimulatedWorldMaker final : public WorldMaker {
 public:
  void add_options(CLI::App& app, JobSettings) override {
    app.add_option("--platform", platform_, "the machine to simulate: a file of JSON")->required();
  }
  std::unique_ptr<World> make() override {
    // All ranks share the machine.  It outlives them, because their read-ahead may still be in flight.
    static std::shared_ptr<Machine> machine;
    try {
      if (machine == nullptr) machine = std::make_shared<Machine>(platform_);
    } catch (const std::exception& e) {
      die("%s: %s", platform_.c_str(), e.what());
    }
    return std::make_unique<SimulatedWorld>(machine);
  }

 private:
  std::string platform_;
};

}  // namespace

std::unique_ptr<WorldMaker> simulated_world() { return std::make_unique<SimulatedWorldMaker>(); }

}  // namespace lmdbio::bench
