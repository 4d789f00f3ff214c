// Starts workers, gives them rounds in a fair order, and knows the machine it runs on.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/worker.h"

namespace lmdbio::bench {

struct WorkerSpec {
  std::string label;              // "stock", "stock (A/A)", "ours", ...
  std::vector<std::string> argv;  // argv[0] is the program
  std::string preload;            // LD_PRELOAD of the worker; empty: none
};

/// A running worker.  Ends it (by hanging up) and waits for it on destruction.
class Worker {
 public:
  explicit Worker(const WorkerSpec& spec);
  ~Worker();
  Worker(Worker&& other) noexcept;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  Worker& operator=(Worker&&) = delete;

  /// Sends a command and waits for its answer.  A worker that died, hangs for ten minutes or counts a wrong
  /// answer ends the benchmark.
  Reply call(const Command& command);
  const std::string& label() const { return label_; }

 private:
  std::string label_;
  pid_t pid_ = -1;
  int fd_ = -1;
};

/// The order in which n workers run in a round: rotated, and reversed every n rounds, so that over 2n rounds
/// each runs in each place equally often and after each other one equally often.
std::vector<std::size_t> round_order(std::size_t n, std::size_t round);

/// The core that workers are pinned to: the last one this process may use; the parent keeps away from it if
/// it can.
int worker_cpu();
void keep_off_cpu(int cpu);

/// CPU, caches, kernel, memory, load: what a reader of results must know.
nlohmann::json machine_facts();

std::uint64_t last_level_cache_bytes();

/// The directory of the running program, for finding its neighbours.
std::string program_dir();

/// liblmdbio.so beside this build's bin/ (../lib/liblmdbio.so).
std::string default_library();

void write_json(const std::string& file, const nlohmann::json& value);

}  // namespace lmdbio::bench
