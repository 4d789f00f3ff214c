// A clock whose time passes as fast as its events can be called.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "bench/scale/simulation/clock.h"

namespace lmdbio::bench {

class TestClock final : public Clock {
 public:
  double seconds() const override { return now_; }
  void at(double seconds, std::function<void()> what) override {
    events_.push({std::max(seconds, now_), number_++, std::move(what)});
  }
  /// Calls all events in the order of their times.
  void run() {
    while (!events_.empty()) {
      const Event next = events_.top();
      events_.pop();
      now_ = next.seconds;
      next.what();
    }
  }

 private:
  struct Event {
    double seconds;
    std::uint64_t number;
    std::function<void()> what;
    bool operator<(const Event& other) const {
      return std::pair(seconds, number) > std::pair(other.seconds, other.number);
    }
  };
  std::priority_queue<Event> events_;
  double now_ = 0;
  std::uint64_t number_ = 0;
};

}  // namespace lmdbio::bench
