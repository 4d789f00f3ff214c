// A link of so many bytes a second that mounts share, also between processes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace lmdbio::slowfs {

/// The link carries one transfer after the other and saves nothing up while idle.  Its state is one word, the
/// time when it is free again, moved on by compare-and-swap: no lock that a killed process could keep, and
/// every byte was paid for before it is handed out.  Any thread.
class TokenBucket {
 public:
  using Clock = std::chrono::steady_clock;

  /// The link kept in `file`, made if need be; empty: one of this process alone.  Throws std::runtime_error.
  explicit TokenBucket(const std::string& file);
  ~TokenBucket();
  TokenBucket(const TokenBucket&) = delete;
  TokenBucket& operator=(const TokenBucket&) = delete;

  /// 0: no cap.  For all who share it.
  void set_rate(std::uint64_t bytes_per_second) noexcept;
  /// Buys the transfer of `bytes`; it is over at the returned time.
  Clock::time_point take(std::uint64_t bytes) noexcept;
  /// rate; since the last reset by anyone: bytes, transfers, busy_ns (what they took), begin_ns (of the
  /// first); free_ns: when all that was bought will be over.  Times are CLOCK_MONOTONIC's.
  nlohmann::json json() const;
  void reset() noexcept;

 private:
  struct Shared;
  Shared* shared_ = nullptr;
};

}  // namespace lmdbio::slowfs
