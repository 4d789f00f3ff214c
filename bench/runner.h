// Starts workers, runs them in a fair order, and describes the machine.
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

/// A running worker process.  The destructor closes its socket, which ends the process, and waits for it.
class Worker {
 public:
  explicit Worker(const WorkerSpec& spec);
  ~Worker();
  Worker(Worker&& other) noexcept;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  Worker& operator=(Worker&&) = delete;

  /// Sends a command and waits for the reply.  Ends the benchmark if the worker died, does not reply for ten
  /// minutes, or counted a wrong result.
  Reply call(const Command& command);
  const std::string& label() const { return label_; }

 private:
  std::string label_;
  pid_t pid_ = -1;
  int fd_ = -1;
};

/// Returns the order in which n workers run in a round.  The order is rotated each round, and reversed every
/// n rounds.  So over 2n rounds each worker runs equally often at each position, and equally often after each
/// other worker.
std::vector<std::size_t> round_order(std::size_t n, std::size_t round);

/// Returns the core to which workers are pinned: the last one that this process may use.  keep_off_cpu()
/// binds this process to other cores if there are any.
int worker_cpu();
void keep_off_cpu(int cpu);

/// Returns facts that readers of results need: CPU, caches, kernel, memory, load.
nlohmann::json machine_facts();

std::uint64_t last_level_cache_bytes();

/// Returns the directory of the running program, which contains the other programs.
std::string program_dir();

/// Returns the path of this build's liblmdbio.so (../lib/liblmdbio.so).
std::string default_library();

void write_json(const std::string& file, const nlohmann::json& value);

}  // namespace lmdbio::bench
