// LMDBIO's distributed streams among simulated ranks.  lmdbio/ranks plans, sends and receives; messages and
// reads are simulated.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "bench/scale/loader.h"
#include "bench/scale/simulation/cpu_time.h"
#include "bench/scale/simulation/machine.h"
#include "bench/scale/stream_order.h"

namespace lmdbio::bench {

/// The work of LMDBIO's thread while the program computes.
class Background {
 public:
  virtual ~Background() = default;
  /// Works for `seconds`.
  virtual void go_on(double seconds) = 0;
  /// Works until all ranks have called it.
  virtual void go_on_until_all_have_come() = 0;
};

class SimulatedStreams final : public Loader {
 public:
  /// All ranks call it.  `machine` and `cpu` must outlive this object.
  SimulatedStreams(const LoaderSettings& settings, Machine& machine, CpuTime& cpu);
  SimulatedStreams(const SimulatedStreams&) = delete;
  SimulatedStreams& operator=(const SimulatedStreams&) = delete;
  ~SimulatedStreams() override;

  std::uint64_t records() const override { return machine_.records().count(); }
  std::span<const Value> next() override;
  void close() override;
  LoaderCounters counters() const override { return counters_; }
  std::shared_ptr<Background> background() const noexcept;

 private:
  class Stream;

  Machine& machine_;
  std::shared_ptr<Stream> stream_;
  LoaderCounters counters_;
  StepCounter steps_{1};
  std::vector<Value> values_;
};

}  // namespace lmdbio::bench
