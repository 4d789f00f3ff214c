// Formats numbers and names for people.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace lmdbio::cli {

[[gnu::format(printf, 1, 2)]] inline std::string format_text(const char* format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  const int n = std::vsnprintf(nullptr, 0, format, args);
  va_end(args);
  std::string out(n > 0 ? static_cast<std::size_t>(n) : 0, '\0');
  if (n > 0) (void)std::vsnprintf(out.data(), out.size() + 1, format, again);
  va_end(again);
  return out;
}

/// Returns a size, such as "1.5 MiB".
inline std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  unsigned unit = 0;
  for (; bytes >= 1024 && unit < 6; ++unit) bytes /= 1024;
  return format_text(unit == 0 ? "%.0f %s" : "%.1f %s", bytes, kUnits[unit]);
}

/// Returns a count, such as "1 page" or "2 pages".  Give `plural` if it is not the singular with an s.
inline std::string counted(std::uint64_t n, std::string_view singular, std::string_view plural = {}) {
  std::string out = std::to_string(n) + ' ';
  if (n == 1 || plural.empty())
    out += singular;
  else
    out += plural;
  if (n != 1 && plural.empty()) out += 's';
  return out;
}

/// Returns a percentage, such as "12.3 %", or "-" if `whole` is 0.
inline std::string percent_text(double part, double whole) {
  return whole == 0 ? "-" : format_text("%.1f %%", 100 * part / whole);
}

/// Returns a text with \xHH in place of bytes that are not printable ASCII, which a terminal might interpret,
/// and of the characters in `also`.
inline std::string masked(std::string_view text, std::string_view also = {}) {
  std::string out;
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (u < 0x20 || u >= 0x7f || also.find(c) != std::string_view::npos)
      out += format_text("\\x%02x", u);
    else
      out += c;
  }
  return out;
}

/// Returns a name as masked() does, with backslashes masked as well.  Names may contain any bytes.
inline std::string printable(std::string_view name) { return masked(name, "\\"); }

}  // namespace lmdbio::cli
