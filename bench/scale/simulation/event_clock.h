// A clock whose time passes as fast as its events can be called.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "bench/scale/simulation/clock.h"

namespace lmdbio::bench {

class EventClock final : public Clock {
 public:
  double seconds() const override { return now_; }
  void at(double seconds, std::function<void()> what) override {
    events_.push_back({std::max(seconds, now_), number_++, std::move(what)});
    std::push_heap(events_.begin(), events_.end(), is_later);
  }
  /// Calls all events in the order of their times, until stop().
  void run() {
    stopped_ = false;
    while (!events_.empty() && !stopped_) {
      std::pop_heap(events_.begin(), events_.end(), is_later);
      const Event next = std::move(events_.back());
      events_.pop_back();
      now_ = next.seconds;
      next.what();
    }
  }
  /// Ends run() after the current event.
  void stop() noexcept { stopped_ = true; }

 private:
  struct Event {
    double seconds;
    std::uint64_t number;
    std::function<void()> what;
  };
  static bool is_later(const Event& a, const Event& b) noexcept {
    return std::pair(a.seconds, a.number) > std::pair(b.seconds, b.number);
  }
  std::vector<Event> events_;  ///< a heap
  double now_ = 0;
  std::uint64_t number_ = 0;
  bool stopped_ = false;
};

}  // namespace lmdbio::bench
