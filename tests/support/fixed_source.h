// A process's memory, for tests of readers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "lmdbio/gather/memory_source.h"

namespace lmdbio::testing {

/// So many bytes for all readers.
class FixedSource final : public gather::MemorySource {
 public:
  explicit FixedSource(std::uint64_t limit) : limit_(limit) {}
  std::uint64_t limit() const noexcept override { return limit_; }
  void join(gather::MemoryUse) noexcept override {}
  void leave(gather::MemoryUse) noexcept override {}
  bool take(gather::MemoryUse, std::uint64_t bytes, gather::Urgency) noexcept override {
    ++takes;
    const std::lock_guard lock(mutex_);
    if (used_ + bytes > limit_) return false;
    used_ += bytes;
    most_ = std::max(most_, used_);
    return true;
  }
  void count(gather::MemoryUse, std::uint64_t bytes) noexcept override {
    const std::lock_guard lock(mutex_);
    used_ += bytes;
  }
  void give_back(gather::MemoryUse, std::uint64_t bytes) noexcept override {
    const std::lock_guard lock(mutex_);
    EXPECT_LE(bytes, used_);
    used_ -= bytes;
  }
  std::uint64_t room_for_needs() noexcept override {
    const std::lock_guard lock(mutex_);
    return limit_ - std::min(used_, limit_);
  }
  bool could_take(gather::MemoryUse, std::uint64_t bytes, std::uint64_t of_readers) noexcept override {
    const std::lock_guard lock(mutex_);
    return used_ - std::min(used_, of_readers) + bytes <= limit_;
  }
  std::uint64_t beyond_guaranteed(gather::MemoryUse) noexcept override { return UINT64_MAX; }
  bool pressed(gather::MemoryUse) noexcept override { return is_pressed; }
  void begin_wait() noexcept override {}
  void end_wait() noexcept override {}
  std::uint64_t used() {
    const std::lock_guard lock(mutex_);
    return used_;
  }
  std::uint64_t most() {
    const std::lock_guard lock(mutex_);
    return most_;
  }

  std::atomic<unsigned> takes{0};       ///< that were asked for
  std::atomic<bool> is_pressed{false};  ///< readers have to give back what they can do without

 private:
  const std::uint64_t limit_;
  std::mutex mutex_;
  std::uint64_t used_ = 0, most_ = 0;
};

}  // namespace lmdbio::testing
