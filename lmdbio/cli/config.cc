// lmdbio config: prints the settings that a program started from here would use.

#include "lmdbio/base/config.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "lmdbio/cli/command.h"
#include "lmdbio/cli/text.h"
#include "lmdbio/cli/totals_json.h"

namespace lmdbio::cli {
namespace {

struct Setting {
  const ConfigEntry* entry;
  std::string value, source;
  const char* refused = nullptr;  ///< the invalid value in the environment
};

Setting setting(const ConfigEntry& e) {
  const char* const given = std::getenv(e.name);
  if (given == nullptr || *given == '\0') return {&e, e.def, "default"};
  Config scratch;
  if (e.parse(scratch, given)) return {&e, given, "environment"};
  return {&e, e.def, "default, because the value in the environment is not valid", given};
}

void show(bool json) {
  Json out = Json::array();
  std::vector<Setting> settings;
  for (const ConfigEntry& e : config_table()) settings.push_back(setting(e));
  // List settings that differ from the default first.
  if (!json)
    std::stable_partition(settings.begin(), settings.end(),
                          [](const Setting& s) { return s.source != "default"; });
  for (const Setting& s : settings) {
    const ConfigEntry& e = *s.entry;
    if (json) {
      Json j{{"name", e.name}, {"value", s.value}, {"source", s.refused != nullptr ? "invalid" : s.source}};
      if (s.refused != nullptr) j["refused"] = s.refused;
      j["default"] = e.def;
      j["range"] = e.range;
      j["meaning"] = e.meaning;
      out.push_back(std::move(j));
      continue;
    }
    std::printf("%s=%s\n    from: %s\n", e.name, printable(s.value).c_str(), s.source.c_str());
    if (s.refused != nullptr) std::printf("    not valid: %s\n", printable(s.refused).c_str());
    std::printf("    allowed: %s\n    %s\n", e.range, e.meaning);
  }
  if (json) std::printf("%s\n", dump(out).c_str());
}

}  // namespace

void add_config(CLI::App& app, int& status) {
  const auto json = std::make_shared<bool>(false);
  CLI::App* const sub =
      app.add_subcommand("config", "print the settings in force, and where each comes from");
  sub->add_flag("--json", *json, "print a JSON array");
  sub->callback([json, &status] {
    show(*json);
    status = kClean;
  });
}

}  // namespace lmdbio::cli
