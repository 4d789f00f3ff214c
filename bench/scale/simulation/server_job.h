// A job whose nodes have a server each (lmdbio/serve), and a program that reads through it.
#pragma once

#include <cstdint>
#include <string>

#include "bench/scale/simulation/platform.h"
#include "bench/scale/simulation/server_programs.h"

namespace lmdbio::bench {

struct ServerJobSettings {
  std::uint32_t nodes = 1;
  WantedPieces::Order order = WantedPieces::Order::in_order;
  std::uint64_t record_bytes = 0;
  std::uint64_t file_bytes = 0;  ///< a multiple of record_bytes
  std::uint64_t memory = 0;      ///< of a server for chunks, in bytes
  unsigned requests = node::kServiceSlots;
};

/// Times are seconds after all servers have started.
struct ServerJobResult {
  double seconds = 0;   ///< until all programs have all bytes, with their opens
  double joined_s = 0;  ///< until all programs have opened the file
  /// What the job would take if only the file system, or only a link, were slow.
  double file_system_s = 0, links_s = 0, copies_s = 0;
  double longest_silence_s = 0;           ///< SimulatedProgram::longest_silence_s(), of all programs
  std::uint64_t wanted_bytes = 0;         ///< by all programs
  std::uint64_t read_bytes = 0;           ///< from the file system
  std::uint64_t alone_bytes = 0;          ///< of these by servers that are not the home
  std::uint64_t most_read = 0;            ///< by one server
  std::uint64_t most_sent = 0, sent = 0;  ///< bytes of all messages of one server, and of all
  std::uint64_t messages = 0, steps = 0;  ///< of all servers
  std::uint64_t most_memory = 0;          ///< of one server, in bytes, without chunks
  std::uint64_t most_operations = 0;      ///< of one server, at the same time
  std::uint64_t failed = 0;               ///< requests of programs
};

/// Simulates a job.  Throws std::invalid_argument.
ServerJobResult run_server_job(const Platform& platform, const ServerJobSettings& settings);

}  // namespace lmdbio::bench
