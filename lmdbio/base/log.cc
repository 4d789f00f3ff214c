#include "lmdbio/base/log.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "lmdbio/base/file_size_signal.h"
#include "lmdbio/base/unique_fd.h"

namespace lmdbio {
namespace {

constexpr char kPrefix[] = "lmdbio: ";
constexpr char kLast[] = "lmdbio: further messages are suppressed\n";
constexpr std::size_t kPrefixBytes = sizeof kPrefix - 1;
constexpr std::size_t kLineBytes = 1024;

std::atomic<LogLevel> g_level{LogLevel::warn};
std::atomic<unsigned> g_lines{0};
std::atomic<StandardErrorOpener> g_open_stderr{nullptr};

void put(const char* text, std::size_t bytes) noexcept {
  int cancel = 0;  // write(2) is a cancellation point, but callers are not
  (void)::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
  const StandardErrorOpener open = g_open_stderr.load(std::memory_order_acquire);
  const int opened = open != nullptr ? open() : kSharesDescriptors;
  const UniqueFd own(opened);
  const NoFileSizeSignal limited;  // standard error may be a file
  // A failure is ignored, since it cannot be reported.
  [[maybe_unused]] const ssize_t written =
      ::write(opened == kSharesDescriptors ? STDERR_FILENO : opened, text, bytes);
  (void)::pthread_setcancelstate(cancel, nullptr);
}

}  // namespace

void set_standard_error_opener(StandardErrorOpener opener) noexcept {
  g_open_stderr.store(opener, std::memory_order_release);
}

void set_log_level(LogLevel level) noexcept { g_level.store(level, std::memory_order_relaxed); }

bool log_enabled(LogLevel level) noexcept { return level <= g_level.load(std::memory_order_relaxed); }

void log_line(LogLevel level, const char* fmt, ...) noexcept {
  if (!log_enabled(level)) return;
  // This test keeps the count from wrapping around.
  if (g_lines.load(std::memory_order_relaxed) > kLogLines) return;
  const int saved = errno;
  const unsigned before = g_lines.fetch_add(1, std::memory_order_relaxed);
  if (before < kLogLines) {
    char line[kLineBytes];
    std::memcpy(line, kPrefix, kPrefixBytes);
    constexpr std::size_t room = kLineBytes - kPrefixBytes;  // the text, and one byte for NUL, later for '\n'
    va_list args;
    va_start(args, fmt);
    const int wanted = std::vsnprintf(line + kPrefixBytes, room, fmt, args);
    va_end(args);
    std::size_t bytes = wanted < 0 ? 0 : static_cast<std::size_t>(wanted);
    if (bytes > room - 1) bytes = room - 1;
    for (std::size_t i = kPrefixBytes; i < kPrefixBytes + bytes; ++i)
      if (const auto c = static_cast<unsigned char>(line[i]); c < 0x20 || c == 0x7f) line[i] = '?';
    line[kPrefixBytes + bytes] = '\n';
    put(line, kPrefixBytes + bytes + 1);
  } else if (before == kLogLines) {
    put(kLast, sizeof kLast - 1);
  }
  errno = saved;
}

}  // namespace lmdbio
