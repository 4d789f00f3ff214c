// Simulates a job whose nodes have a server each, and prints the result as a line of JSON.
// bench/scale/run --servers starts it.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/common.h"
#include "bench/scale/simulation/platform.h"
#include "bench/scale/simulation/server_job.h"

namespace lmdbio::bench {
namespace {

int run(int argc, char** argv) {
  CLI::App app("Simulates a job whose nodes have a server each (lmdbio serve)");
  std::string platform_file;
  ServerJobSettings job;
  const std::map<std::string, WantedPieces::Order> orders{{"in-order", WantedPieces::Order::in_order},
                                                          {"strided", WantedPieces::Order::strided},
                                                          {"shuffled", WantedPieces::Order::shuffled}};
  app.add_option("platform", platform_file, "the machine: a file of JSON")->required();
  app.add_option("--nodes", job.nodes, "with a server and a program each")
      ->required()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--bytes", job.file_bytes, "of the file")->required()->transform(CLI::AsSizeValue(false));
  app.add_option("--order", job.order, "what programs want")
      ->transform(CLI::CheckedTransformer(orders, CLI::ignore_case));
  app.add_option("--record-bytes", job.record_bytes, "of a record, with its share of the pages")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--requests", job.requests, "of a program at the same time")
      ->check(CLI::Range(1u, node::kServiceSlots));
  app.add_option("--memory", job.memory, "of a server for chunks (default: a quarter of the node's)")
      ->transform(CLI::AsSizeValue(false));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  const Platform platform = read_platform(platform_file);
  if (job.memory == 0) job.memory = platform.node_memory_bytes / 4;
  if (job.record_bytes == 0) job.record_bytes = std::uint64_t{112} << 10;
  job.file_bytes -= job.file_bytes % job.record_bytes;
  if (job.file_bytes / job.record_bytes < job.nodes) die("the file has to have a record for each node");
  const ServerJobResult r = run_server_job(platform, job);
  const nlohmann::json result{{"nodes", job.nodes},
                              {"file_bytes", job.file_bytes},
                              {"seconds", r.seconds},
                              {"joined_s", r.joined_s},
                              {"file_system_s", r.file_system_s},
                              {"links_s", r.links_s},
                              {"copies_s", r.copies_s},
                              {"longest_silence_s", r.longest_silence_s},
                              {"wanted_bytes", r.wanted_bytes},
                              {"read_bytes", r.read_bytes},
                              {"alone_bytes", r.alone_bytes},
                              {"most_read", r.most_read},
                              {"most_sent", r.most_sent},
                              {"sent", r.sent},
                              {"messages", r.messages},
                              {"steps", r.steps},
                              {"most_memory", r.most_memory},
                              {"most_operations", r.most_operations},
                              {"failed", r.failed}};
  std::puts(result.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace lmdbio::bench

int main(int argc, char** argv) {
  try {
    return lmdbio::bench::run(argc, argv);
  } catch (const std::exception& e) {
    lmdbio::bench::die("%s", e.what());
  }
}
