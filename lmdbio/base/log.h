// Messages to the user: few, one line each, on standard error.
#pragma once

namespace lmdbio {

enum class LogLevel : unsigned char { error, warn, info, debug };

/// Lines that a process may write; then one line that says so, then none.
inline constexpr unsigned kLogLines = 20;

/// Messages above `level` are dropped.  Until config() has run it is `warn`.
void set_log_level(LogLevel level) noexcept;
bool log_enabled(LogLevel level) noexcept;

/// Opens the program's standard error for a thread that does not share the program's descriptors: a
/// descriptor that log_line() closes, -1: there is none; kSharesDescriptors: the thread does share them.
using StandardErrorOpener = int (*)() noexcept;
inline constexpr int kSharesDescriptors = -2;
void set_standard_error_opener(StandardErrorOpener opener) noexcept;

/// Writes "lmdbio: <text>\n" to the program's descriptor 2 in one write(2).  Text is cut at about 1000 bytes,
/// control characters become '?'.  No allocation, no lock, errno preserved, any thread; not for signal
/// handlers. Does not read config().
void log_line(LogLevel level, const char* fmt, ...) noexcept __attribute__((format(printf, 2, 3)));

}  // namespace lmdbio
