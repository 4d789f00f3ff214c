#include "bench/scale/simulation/platform.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/common.h"

namespace lmdbio::bench {

Platform read_platform(const std::string& file) {
  std::ifstream in(file);
  if (!in) die("%s: cannot be read", file.c_str());
  Platform platform;
  StorageSettings& s = platform.storage;
  try {
    const nlohmann::json all = nlohmann::json::parse(in);
    platform.node_memory_bytes = all.at("node_memory_bytes");
    platform.memory_latency_s = all.at("memory").at("latency_s");
    platform.network_bytes_s = all.at("network").at("bytes_s");
    platform.network_latency_s = all.at("network").at("latency_s");
    if (!(platform.network_bytes_s > 0 && platform.network_latency_s > 0))
      die("%s: network: bytes_s and latency_s have to be above 0", file.c_str());
    platform.read_ahead_bytes = all.at("read_ahead_bytes");
    if (platform.read_ahead_bytes < PageCache::kPageBytes)
      die("%s: read_ahead_bytes has to be at least %zu", file.c_str(), PageCache::kPageBytes);
    nlohmann::json left;
    const auto take = [&](const char* name, auto& to) {
      to = left.at(name).get<std::remove_reference_t<decltype(to)>>();
      left.erase(name);
    };
    const auto refuse_rest = [&](const char* part) {
      if (!left.empty())
        die("%s: %s has an unknown member %s", file.c_str(), part, left.begin().key().c_str());
    };
    left = all.at("cpu");
    take("next_s", platform.cpu.next_s);
    take("fault_s", platform.cpu.fault_s);
    take("major_fault_s", platform.cpu.major_fault_s);
    take("wake_s", platform.cpu.wake_s);
    take("woken_s", platform.cpu.woken_s);
    take("copy_bytes_s", platform.cpu.copy_bytes_s);
    refuse_rest("cpu");
    const CpuCosts& cpu = platform.cpu;
    if (std::min({cpu.next_s, cpu.fault_s, cpu.major_fault_s, cpu.wake_s, cpu.woken_s}) < 0 ||
        cpu.copy_bytes_s <= 0)
      die("%s: cpu: times have to be at least 0, and copy_bytes_s above 0", file.c_str());
    left = all.at("kernel");
    unsigned around_bytes = 0;
    take("wait_queues", platform.kernel.wait_queues);
    take("fault_around_bytes", around_bytes);
    refuse_rest("kernel");
    platform.kernel.fault_around_pages = around_bytes / PageCache::kPageBytes;
    if (platform.kernel.fault_around_pages == 0)
      die("%s: kernel: fault_around_bytes has to be at least %zu", file.c_str(), PageCache::kPageBytes);
    platform.cores = all.at("cores");
    if (platform.cores == 0) die("%s: cores has to be at least 1", file.c_str());
    if (all.contains("emulated")) {
      Platform::Emulated& e = platform.emulated.emplace();
      left = all.at("emulated");
      take("request_s", e.request_s);
      take("bytes_s", e.bytes_s);
      refuse_rest("emulated");
      if (e.request_s < 0 || e.bytes_s <= 0)
        die("%s: emulated: request_s has to be at least 0, and bytes_s above 0", file.c_str());
    }
    left = all.at("storage");
    take("servers", s.servers);
    take("stripe_bytes", s.stripe_bytes);
    take("server_bytes_s", s.server_bytes_s);
    take("request_s", s.request_s);
    take("latency_s", s.latency_s);
    take("latency_spread", s.latency_spread);
    take("requests_in_flight", s.in_flight);
    take("client_bytes_s", s.client_bytes_s);
    take("largest_request_bytes", platform.largest_request_bytes);
    refuse_rest("storage");
  } catch (const nlohmann::json::exception& e) {
    die("%s: %s", file.c_str(), e.what());
  }
  return platform;
}

}  // namespace lmdbio::bench
