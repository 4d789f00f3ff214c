#include "lmdbio/cli/progress.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <system_error>
#include <utility>

#include "lmdbio/cli/text.h"

namespace lmdbio::cli {
namespace {

std::atomic<bool> is_interrupted{false};
std::atomic<int> by_signal{SIGINT};

extern "C" void on_interrupt(int signal) {
  by_signal.store(signal, std::memory_order_relaxed);
  is_interrupted.store(true, std::memory_order_relaxed);
}

/// Returns a duration, such as "4:07" or "1:02:03".
std::string time_text(double seconds) {
  const auto s = static_cast<unsigned long long>(seconds + 0.5);
  return s < 3600 ? format_text("%llu:%02llu", s / 60, s % 60)
                  : format_text("%llu:%02llu:%02llu", s / 3600, s / 60 % 60, s % 60);
}

}  // namespace

Progress::Progress(std::string what) : what_(std::move(what)) {
  if (::isatty(STDERR_FILENO) != 1) return;
  try {
    thread_ = std::thread([this] { draw_until_end(); });
  } catch (const std::system_error&) {  // without a thread, nothing is drawn
  }
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Progress::draw_until_end() noexcept {
  using namespace std::chrono_literals;
  bool drawn = false;
  std::unique_lock lock(mutex_);
  // A command that ends before the first timeout draws nothing.
  while (!changed_.wait_for(lock, 250ms, [this] { return ends_; })) {
    draw();
    drawn = true;
  }
  if (drawn) std::fputs("\r\033[K", stderr);
}

void Progress::draw() noexcept {
  try {
    const std::uint64_t total = total_.load(std::memory_order_relaxed);
    const std::uint64_t done = std::min(done_.load(std::memory_order_relaxed), total);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    const double part = total == 0 ? 0 : static_cast<double>(done) / static_cast<double>(total);
    std::string line =
        format_text("%s %3.0f %% [%-30.*s] %s", what_.c_str(), 100 * part, static_cast<int>(30 * part),
                    "##############################", time_text(seconds).c_str());
    if (part >= 0.01) line += ", " + time_text(seconds / part - seconds) + " left";
    std::fprintf(stderr, "\r%s\033[K", line.c_str());
  } catch (...) {  // out of memory: skip this drawing
  }
}

const std::atomic<bool>& interrupted() noexcept { return is_interrupted; }

void catch_interrupts() noexcept {
  struct sigaction act {};
  act.sa_handler = on_interrupt;
  act.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int s : {SIGINT, SIGTERM}) {
    struct sigaction before {};
    if (::sigaction(s, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
      (void)::sigaction(s, &act, nullptr);
  }
}

int interrupted_status() noexcept { return 128 + by_signal.load(std::memory_order_relaxed); }

}  // namespace lmdbio::cli
