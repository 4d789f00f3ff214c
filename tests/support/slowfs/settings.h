// What a slow file system does to its users: one table of settings, for the command line and the control
// file.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace lmdbio::slowfs {

/// Which of the numbered requests something happens to.  0: not by this rule.
struct Trigger {
  std::int64_t at = 0, from = 0, every = 0;
  bool hits(std::uint64_t number) const noexcept {
    const auto n = static_cast<std::int64_t>(number);
    return (at != 0 && n == at) || (from != 0 && n >= from) || (every != 0 && n % every == 0);
  }
};

/// A value; copied, never changed, once requests may see it.
struct Settings {
  static constexpr std::int64_t kAsSource = -1;  // owner, modes
  static constexpr std::int64_t kForever = -1;   // times
  std::int64_t delay_us = 0, metadata_delay_us = 0;
  std::int64_t bandwidth = -1;      // bytes/s, 0: no cap, -1: what the group has
  std::int64_t read_ahead_kb = -1;  // -1: the kernel's
  Trigger fail, shorten, hang;
  std::int64_t fail_errno = 0;  // EIO unless set
  std::int64_t short_bytes = 1;
  std::int64_t hang_ms = kForever;
  std::int64_t no_mmap = 0, raw_direct = 0, cold_open = 0;
  std::int64_t direct_errno = 0, create_errno = 0, write_open_errno = 0;  // 0: allowed
  std::int64_t lock_errno = 0, lock_hang_ms = 0;
  std::int64_t uid = kAsSource, gid = kAsSource, file_mode = kAsSource, dir_mode = kAsSource;
  std::string files = "*";

  Settings();
  /// Sets `name` to what `value` says.  False: nothing changed, and `why` tells the reason.
  bool set(std::string_view name, std::string_view value, std::string& why);
  nlohmann::json json() const;
  /// Whether refusals and faults are for a file of this name.
  bool concerns(const std::string& name) const;
};

struct SettingHelp {
  std::string name, help;
};
std::vector<SettingHelp> setting_helps();

/// `text` as a decimal number from `low` to `high`.
bool parse_number(std::string_view text, std::int64_t low, std::int64_t high, std::int64_t& out,
                  int base = 10);

}  // namespace lmdbio::slowfs
