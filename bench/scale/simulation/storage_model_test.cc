#include "bench/scale/simulation/storage_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "bench/scale/simulation/event_clock.h"
#include "lmdbio/base/mix.h"

namespace lmdbio::bench {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

StorageSettings infinite() {
  StorageSettings s;
  s.server_bytes_s = s.client_bytes_s = 1e18;
  s.in_flight = 1000000;
  return s;
}

/// A request of times(), which starts all requests at once and returns when each is done.
struct Asked {
  std::size_t client;
  std::uint64_t offset, bytes;
};
std::vector<double> times(const StorageSettings& settings, std::size_t clients,
                          const std::vector<Asked>& asked) {
  EventClock clock;
  StorageModel storage(settings, clients, clock);
  std::vector<double> done(asked.size(), -1);
  for (std::size_t i = 0; i < asked.size(); ++i)
    storage.read(asked[i].client, asked[i].offset, asked[i].bytes, [&, i] { done[i] = clock.seconds(); });
  clock.run();
  return done;
}

/// Returns the seconds until `clients` have read a file together.  Each reads its share with one request of
/// `request` bytes at a time.
double epoch(const StorageSettings& settings, std::size_t clients, std::uint64_t file, std::uint64_t request,
             StorageCounters* counters = nullptr) {
  EventClock clock;
  StorageModel storage(settings, clients, clock);
  std::vector<std::uint64_t> at(clients), end(clients);
  const std::function<void(std::size_t)> next = [&](std::size_t c) {
    if (at[c] == end[c]) return;
    const std::uint64_t bytes = std::min(request, end[c] - at[c]);
    at[c] += bytes;
    storage.read(c, at[c] - bytes, bytes, [&, c] { next(c); });
  };
  for (std::size_t c = 0; c < clients; ++c) {
    at[c] = file * c / clients;
    end[c] = file * (c + 1) / clients;
    next(c);
  }
  clock.run();
  if (counters != nullptr) *counters = storage.counters();
  return clock.seconds();
}

TEST(StorageModel, OneRequestTakesItsLatencyItsServiceAndItsWayThroughTheNetwork) {
  StorageSettings s;
  s.latency_s = 2e-3;
  s.request_s = 1e-4;
  s.server_bytes_s = 1e9;
  s.client_bytes_s = 2e9;
  EXPECT_NEAR(times(s, 1, {{0, 0, kMiB}})[0], 2e-3 + 1e-4 + 1048576 / 1e9 + 1048576 / 2e9, 1e-12);
  EXPECT_NEAR(times(s, 1, {{0, 0, 0}})[0], 2e-3 + 1e-4, 1e-12);
}

TEST(StorageModel, RequestsInFlightTogetherShareTheLatency) {
  StorageSettings s = infinite();
  s.latency_s = 1e-3;
  const std::vector<Asked> asked(100, {0, 0, 4096});
  s.in_flight = 100;
  EXPECT_NEAR(times(s, 1, asked).back(), 1e-3, 1e-9);
  s.in_flight = 10;
  EXPECT_NEAR(times(s, 1, asked).back(), 10e-3, 1e-9);
  s.in_flight = 1;
  EXPECT_NEAR(times(s, 1, asked).back(), 100e-3, 1e-9);
}

TEST(StorageModel, AServerAnswersInTheOrderOfArrival) {
  StorageSettings s = infinite();
  s.request_s = 1;
  const std::vector<double> done = times(s, 3, {{2, 0, 1}, {0, 0, 1}, {1, 0, 1}, {0, 0, 1}});
  for (std::size_t i = 0; i < done.size(); ++i) EXPECT_NEAR(done[i], static_cast<double>(i + 1), 1e-9);
}

TEST(StorageModel, WhatWaitsInAClientDoesNotHoldUpOthers) {
  StorageSettings s = infinite();
  s.request_s = 1;
  s.in_flight = 1;
  // The server never has more than one request of each client.
  const std::vector<double> done = times(s, 2, {{0, 0, 1}, {0, 0, 1}, {0, 0, 1}, {1, 0, 1}});
  EXPECT_NEAR(done[3], 2, 1e-9);
  EXPECT_NEAR(done[2], 4, 1e-9);
}

TEST(StorageModel, StripesAreServedByAllServers) {
  StorageSettings s = infinite();
  s.servers = 4;
  s.server_bytes_s = 1e9;
  EXPECT_NEAR(times(s, 1, {{0, 0, 8 * kMiB}})[0], 2 * 1048576 / 1e9, 1e-9);
  // This request goes from the middle of one stripe to the middle of another.
  EXPECT_NEAR(times(s, 1, {{0, kMiB / 2, kMiB}})[0], 1048576 / 2e9, 1e-9);
  // This request lies within one stripe.
  EXPECT_NEAR(times(s, 1, {{0, 5 * kMiB, kMiB}})[0], 1048576 / 1e9, 1e-9);
}

TEST(StorageModel, ServersGiveAsManyBytesAsAreAskedFor) {
  StorageSettings s;
  s.servers = 7;
  s.stripe_bytes = 64 << 10;
  s.latency_s = 1e-3;
  s.latency_spread = 0.5;
  EventClock clock;
  StorageModel storage(s, 5, clock);
  std::uint64_t asked = 0, done = 0;
  for (std::uint64_t i = 0; i < 5000; ++i) {
    const std::uint64_t bytes = mix(i) % (4 * kMiB);
    asked += bytes;
    storage.read(i % 5, mix(i + 5000) % (1ULL << 40), bytes, [&] { ++done; });
  }
  clock.run();
  const StorageCounters& c = storage.counters();
  EXPECT_EQ(done, 5000U);
  EXPECT_EQ(c.requests, 5000U);
  EXPECT_EQ(c.bytes, asked);
  EXPECT_EQ(std::accumulate(c.server_bytes.begin(), c.server_bytes.end(), std::uint64_t{0}), asked);
  for (std::size_t client = 0; client < 5; ++client) EXPECT_EQ(storage.unfinished(client), 0U);
  for (const double busy : c.server_busy_s) EXPECT_LE(busy, clock.seconds());
}

TEST(StorageModel, OneServerTakesTheFileByItsBandwidth) {
  StorageSettings s = infinite();
  s.server_bytes_s = 1e9;
  s.latency_s = 1e-3;
  const std::uint64_t file = 1000 * kMiB;
  StorageCounters counters;
  EXPECT_NEAR(epoch(s, 16, file, kMiB, &counters) / (static_cast<double>(file) / 1e9), 1, 0.01);
  EXPECT_EQ(counters.bytes, file);
}

TEST(StorageModel, ClientsCannotHaveMoreThanASaturatedServerGives) {
  StorageSettings s = infinite();
  s.server_bytes_s = 1e9;
  s.latency_s = 1e-3;
  const std::uint64_t file = 1000 * kMiB;
  EXPECT_NEAR(epoch(s, 64, file, kMiB) / epoch(s, 32, file, kMiB), 1, 0.01);
  // One client with one request at a time leaves the server idle most of the time.
  EXPECT_GT(epoch(s, 1, file, 4096) / epoch(s, 2, file, 4096), 1.9);
}

TEST(StorageModel, AnInfiniteOneTakesNoTime) { EXPECT_LT(epoch(infinite(), 8, 1000 * kMiB, kMiB), 1e-6); }

TEST(StorageModel, TheNetworkOfAClientIsItsOwn) {
  StorageSettings s = infinite();
  s.client_bytes_s = 1e9;
  EXPECT_NEAR(epoch(s, 1, 100 * kMiB, kMiB), 100 * 1048576 / 1e9, 1e-3);
  EXPECT_NEAR(epoch(s, 10, 100 * kMiB, kMiB), 10 * 1048576 / 1e9, 1e-3);
}

TEST(StorageModel, TheSeedDecides) {
  StorageSettings s;
  s.latency_s = 1e-3;
  s.latency_spread = 0.3;
  const std::vector<Asked> asked(200, {0, 0, 4096});
  const std::vector<double> one = times(s, 1, asked);
  EXPECT_EQ(one, times(s, 1, asked));
  s.seed = 2;
  EXPECT_NE(one, times(s, 1, asked));
}

TEST(StorageModel, TheMedianLatencyIsTheOneThatWasSet) {
  StorageSettings s = infinite();
  s.latency_s = 1e-3;
  s.latency_spread = 0.5;
  std::vector<double> done = times(s, 1, std::vector<Asked>(10001, {0, 0, 1}));
  std::nth_element(done.begin(), done.begin() + 5000, done.end());
  EXPECT_NEAR(done[5000], 1e-3, 3e-5);
}

TEST(StorageModel, RefusesWhatIsNoFileSystem) {
  EventClock clock;
  StorageSettings s;
  s.servers = 0;
  EXPECT_THROW(StorageModel(s, 1, clock), std::invalid_argument);
  s = {};
  s.server_bytes_s = 0;
  EXPECT_THROW(StorageModel(s, 1, clock), std::invalid_argument);
  s = {};
  s.latency_s = -1;
  EXPECT_THROW(StorageModel(s, 1, clock), std::invalid_argument);
  s = {};
  s.in_flight = 0;
  EXPECT_THROW(StorageModel(s, 1, clock), std::invalid_argument);
}

}  // namespace
}  // namespace lmdbio::bench
