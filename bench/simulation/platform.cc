#include "bench/simulation/platform.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/common.h"
#include "bench/simulation/page_cache.h"

namespace lmdbio::bench {

Platform read_platform(const std::string& file) {
  std::ifstream in(file);
  if (!in) die("%s: cannot be read", file.c_str());
  Platform platform;
  StorageSettings& s = platform.storage;
  try {
    const nlohmann::json all = nlohmann::json::parse(in);
    platform.node_memory_bytes = all.at("node_memory_bytes");
    platform.read_ahead_bytes = all.at("read_ahead_bytes");
    if (platform.read_ahead_bytes < PageCache::kPageBytes)
      die("%s: read_ahead_bytes has to be at least %zu", file.c_str(), PageCache::kPageBytes);
    nlohmann::json left = all.at("storage");
    const auto take = [&](const char* name, auto& to) {
      to = left.at(name).get<std::remove_reference_t<decltype(to)>>();
      left.erase(name);
    };
    take("servers", s.servers);
    take("stripe_bytes", s.stripe_bytes);
    take("server_bytes_s", s.server_bytes_s);
    take("request_s", s.request_s);
    take("latency_s", s.latency_s);
    take("latency_spread", s.latency_spread);
    take("requests_in_flight", s.in_flight);
    take("client_bytes_s", s.client_bytes_s);
    if (!left.empty()) die("%s: storage has an unknown member %s", file.c_str(), left.begin().key().c_str());
  } catch (const nlohmann::json::exception& e) {
    die("%s: %s", file.c_str(), e.what());
  }
  return platform;
}

}  // namespace lmdbio::bench
