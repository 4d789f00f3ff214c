// Messages to the user on standard error: few, and one line each.
#pragma once

namespace lmdbio {

enum class LogLevel : unsigned char { error, warn, info, debug };

/// Number of lines that a process may write.  One more line then says that further messages are suppressed.
inline constexpr unsigned kLogLines = 20;

/// Drops messages above `level` from now on.  Until config() has run, the level is `warn`.
void set_log_level(LogLevel level) noexcept;
bool log_enabled(LogLevel level) noexcept;

/// Opens the program's standard error for a thread that does not share the program's descriptors.  Returns a
/// descriptor, which log_line() closes; -1 if the program has none; or kSharesDescriptors if the thread
/// shares the program's descriptors.
using StandardErrorOpener = int (*)() noexcept;
inline constexpr int kSharesDescriptors = -2;
void set_standard_error_opener(StandardErrorOpener opener) noexcept;

/// Writes "lmdbio: <text>\n" to the program's descriptor 2 in one write(2).  Cuts the text at about 1000
/// bytes, and replaces control characters by '?'.  Allocates nothing, takes no lock, and does not call
/// config().  errno preserved.  Any thread, but not in signal handlers.
void log_line(LogLevel level, const char* fmt, ...) noexcept __attribute__((format(printf, 2, 3)));

}  // namespace lmdbio
