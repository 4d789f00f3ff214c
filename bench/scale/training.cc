#include "bench/scale/training.h"

#include <mpi.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "bench/common.h"
#include "bench/scale/prepare.h"

namespace lmdbio::bench {
namespace {

template <class T>
std::vector<T> over_ranks(const std::vector<T>& mine, MPI_Datatype type, MPI_Op op) {
  std::vector<T> all(mine.size());
  MPI_Reduce(mine.data(), all.data(), static_cast<int>(mine.size()), type, op, 0, MPI_COMM_WORLD);
  return all;
}

class Training {
 public:
  Training(const TrainingSettings& o, World& world) : o_(o), world_(world) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
    MPI_Comm node = world.split_by_node();
    MPI_Comm_rank(node, &rank_of_node_);
    MPI_Comm_free(&node);
    device_bytes_ = world.process().device_bytes;
    summands_.resize(static_cast<std::size_t>(o.allreduce_mb * 1e6 / sizeof(float)));
  }

  nlohmann::json run(const LoaderSettings& settings) {
    nlohmann::json epochs = nlohmann::json::array();
    std::unique_ptr<Loader> loader;
    std::uint64_t steps = 0;
    for (std::uint64_t epoch = 0; epoch < settings.epochs; ++epoch) {
      MPI_Barrier(MPI_COMM_WORLD);
      const CpuUse cpu = world_.cpu_use();
      const double begin = world_.seconds();
      double opened = 0;
      if (loader == nullptr) {
        loader = make_loader(settings, world_);
        steps = steps_per_epoch(loader->records(), settings.batch, static_cast<std::uint64_t>(ranks_));
        opened = world_.seconds() - begin;
      }
      step_s_.clear();
      wait_s_.clear();
      for (std::uint64_t step = 0; step < steps; ++step) {
        one_step(*loader);
        show({epoch, settings.epochs, step + 1, steps});
      }
      const double own_end = world_.seconds();
      world_.wait_for_all(*loader);
      const double end = world_.seconds();
      const CpuUse cpu_now = world_.cpu_use();
      epochs.push_back(report({end - begin, end - own_end, opened}));
      if (steps > 1 && o_.compute_s > 0) add_utilization(epochs.back(), own_end);
      if (cpu_now.all_s > cpu.all_s)
        epochs.back()["machine_busy"] = (cpu_now.busy_s - cpu.busy_s) / (cpu_now.all_s - cpu.all_s);
    }
    const std::uint64_t memory_kib = world_.process().memory_kib;
    loader->close();
    nlohmann::json j = totals(loader->counters(), memory_kib);
    j["ranks"] = ranks_;
    j["batch"] = settings.batch;
    j["records"] = loader->records();
    j["steps"] = steps;
    j["epochs"] = epochs;
    j["checked"] = !o_.sums.empty();
    return j;
  }

 private:
  void one_step(Loader& loader) {
    const double begin = world_.seconds();
    const std::span<const Value> batch = loader.next();
    wait_s_.push_back(world_.seconds() - begin);
    for (const Value& v : batch) {
      ++read_.records;
      read_.bytes += v.bytes.size();
      if (!world_.has_values()) continue;
      if (o_.sums.empty()) {
        touch(v.bytes);
        continue;
      }
      const std::uint64_t sum = sum_of(v.ordinal, v.bytes.data(), v.bytes.size());
      if (v.ordinal >= o_.sums.size() || o_.sums[v.ordinal] != sum)
        die("rank %d: record %llu differs from its checksum", rank_,
            static_cast<unsigned long long>(v.ordinal));
    }
    compute();
    if (step_s_.empty()) first_computed_ = world_.seconds();
    if (!summands_.empty())
      MPI_Allreduce(MPI_IN_PLACE, summands_.data(), static_cast<int>(summands_.size()), MPI_FLOAT, MPI_SUM,
                    MPI_COMM_WORLD);
    if (o_.barrier) world_.wait_for_all(loader);
    step_s_.push_back(world_.seconds() - begin);
  }
  void compute() {
    if (o_.compute_s == 0) return;
    if (!o_.spin) return world_.sleep(o_.compute_s);
    for (const double end = world_.seconds() + o_.compute_s; world_.seconds() < end;) {
    }
  }
  /// Reads a byte of each page.
  void touch(std::span<const std::byte> bytes) {
    constexpr std::size_t kPage = 4096;
    for (std::size_t at = 0; at < bytes.size(); at += kPage) touched_ = touched_ ^ bytes[at];
    if (!bytes.empty()) touched_ = touched_ ^ bytes.back();
  }
  struct At {
    std::uint64_t epoch, epochs, step, steps;
  };
  void show(const At& at) {
    if (!o_.progress || rank_ != 0) return;
    const bool last = at.epoch + 1 == at.epochs && at.step == at.steps;
    const double now = world_.seconds();
    if (last) std::fputs("\r\033[K", stderr);
    if (last || now < next_show_s_) return;
    next_show_s_ = now + 0.2;
    std::fprintf(stderr, "\repoch %llu of %llu, step %llu of %llu\033[K",
                 static_cast<unsigned long long>(at.epoch + 1), static_cast<unsigned long long>(at.epochs),
                 static_cast<unsigned long long>(at.step), static_cast<unsigned long long>(at.steps));
  }
  /// Gathers values on rank 0 only: on all ranks they would take memory that grows with the square of the
  /// ranks in a simulation.
  template <class T>
  std::vector<T> gathered(T mine, MPI_Datatype type) const {
    std::vector<T> all(static_cast<std::size_t>(rank_ == 0 ? ranks_ : 0));
    MPI_Gather(&mine, 1, type, all.data(), 1, type, 0, MPI_COMM_WORLD);
    return all;
  }
  std::uint64_t sum(std::uint64_t v) const { return over_ranks(std::vector{v}, MPI_UINT64_T, MPI_SUM)[0]; }

  /// Times of an epoch on this rank.
  struct Times {
    double seconds;  ///< from the begin on this rank to the end on all ranks; the maximum over all ranks is
                     ///< the time from the first begin to the last end
    double skew;     ///< the part of `seconds` after this rank has ended
    double opened;
  };
  nlohmann::json report(const Times& times) {
    const double waited = std::accumulate(wait_s_.begin(), wait_s_.end(), 0.0);
    const double asking = world_.asking_seconds();
    const std::vector<double> mine{times.seconds, waited, times.opened, times.skew,
                                   asking - std::exchange(asking_s_, asking)};
    const std::vector<double> most = over_ranks(mine, MPI_DOUBLE, MPI_MAX),
                              all = over_ranks(mine, MPI_DOUBLE, MPI_SUM);
    const std::vector<double> steps = over_ranks(step_s_, MPI_DOUBLE, MPI_MAX);
    std::vector<double> waits = over_ranks(wait_s_, MPI_DOUBLE, MPI_SUM);
    for (double& w : waits) w /= ranks_;
    nlohmann::json e{{"seconds", most[0]},
                     {"open_seconds", most[2]},
                     {"wait_s_max", most[1]},
                     {"wait_s_mean", all[1] / ranks_}};
    e["skew_s"] = most[3];
    e["share_of_io"] = all[0] > 0 ? (all[1] + all[2]) / all[0] : 0;
    e["asking_cpu_s"] = all[4];
    e["wait_s_by_rank"] = gathered(waited, MPI_DOUBLE);
    e["step_seconds"] = steps;
    e["step_wait_s_mean"] = waits;
    e["records"] = sum(read_.records);
    e["bytes"] = sum(read_.bytes);
    read_ = {};
    const std::uint64_t read = world_.process().device_bytes;
    e["device_bytes"] = sum(read - std::exchange(device_bytes_, read));
    if (const std::optional<StorageUse> use = world_.storage_use()) add_storage(e, *use);
    return e;
  }
  /// Adds the accelerator utilization of MLPerf Storage, as a share: total_compute_time /
  /// total_benchmark_running_time, both without the first step (github.com/mlcommons/storage, commit
  /// caa90c9c7d6a, Submission_guidelines.md).  The computation is that which was asked for.  As in DLIO, the
  /// result is the mean of the ranks.  A rank's time ends with its last step, at `end`.
  void add_utilization(nlohmann::json& e, double end) {
    const double computed = o_.compute_s * static_cast<double>(step_s_.size() - 1);
    const double mine = computed / (end - first_computed_);
    e["utilization"] = over_ranks(std::vector{mine}, MPI_DOUBLE, MPI_SUM)[0] / ranks_;
  }
  /// Adds the counters of the file systems of all nodes.
  void add_storage(nlohmann::json& e, StorageUse use) {
    if (use.most_in_flight != 0) e["storage_most_in_flight"] = use.most_in_flight;
    if (rank_of_node_ != 0) use = {};
    e["storage_requests"] = sum(use.requests - std::exchange(storage_.requests, use.requests));
    e["storage_bytes"] = sum(use.bytes - std::exchange(storage_.bytes, use.bytes));
  }

  /// Returns the totals of the whole run over all ranks.
  nlohmann::json totals(const LoaderCounters& c, std::uint64_t memory_kib) {
    std::vector<std::uint64_t> counts{c.reads, c.direct.requests, c.direct.bytes, c.sent_bytes,
                                      std::uint64_t{rank_of_node_ == 0}};
    counts.insert(counts.end(), c.direct.by_size.begin(), c.direct.by_size.end());
    counts = over_ranks(counts, MPI_UINT64_T, MPI_SUM);
    const ProcessFacts process = world_.process();
    const std::vector<std::uint64_t> most = over_ranks(
        std::vector<std::uint64_t>{c.direct.most_in_flight, c.wrong_guesses, process.max_rss_kib, memory_kib},
        MPI_UINT64_T, MPI_MAX);
    const std::vector<std::uint64_t> by_rank = gathered(c.direct.requests, MPI_UINT64_T);
    nlohmann::json j{{"readers", counts[0]},
                     {"requests", counts[1]},
                     {"request_bytes", counts[2]},
                     {"places_sent_bytes", counts[3]},
                     {"nodes", counts[4]}};
    j["requests_by_size"] = {
        {"4K", counts[5]}, {"64K", counts[6]}, {"256K", counts[7]}, {"1M", counts[8]}, {"more", counts[9]}};
    j["requests_by_rank"] = by_rank;
    j["most_in_flight"] = most[0];
    j["wrong_guesses"] = most[1];
    j["max_rss_kib"] = most[2];
    j["memory_kib"] = most[3];
    if (c.library.known)
      j["library"] = {{"file_bytes", c.library.file_bytes},     {"file_requests", c.library.file_requests},
                      {"memory_bytes", c.library.memory_bytes}, {"messages", c.library.messages},
                      {"rank_bytes", c.library.rank_bytes},     {"node_bytes", c.library.node_bytes}};
    j["lmdb_loaded"] = process.lmdb_loaded;
    j["lmdbio_loaded"] = process.lmdbio_loaded;
    return j;
  }

  const TrainingSettings& o_;
  World& world_;
  int rank_ = 0, ranks_ = 1, rank_of_node_ = 0;
  std::vector<float> summands_;
  std::vector<double> step_s_, wait_s_;
  std::uint64_t device_bytes_ = 0;
  StorageUse storage_;
  double next_show_s_ = 0, asking_s_ = 0;
  double first_computed_ = 0;     ///< when the first step of this epoch had computed
  volatile std::byte touched_{};  ///< volatile, so that touch() is not left out
  struct {
    std::uint64_t records = 0, bytes = 0;
  } read_;
};

}  // namespace

nlohmann::json train(const TrainingSettings& training, const LoaderSettings& loading, World& world) {
  return Training(training, world).run(loading);
}

}  // namespace lmdbio::bench
