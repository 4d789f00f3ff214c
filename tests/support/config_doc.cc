// Prints the table of settings as docs/configuration.md has it.
#include <cstdio>
#include <string>
#include <string_view>

#include "lmdbio/base/config.h"

namespace {

std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

}  // namespace

int main() {
  std::puts("| Variable | Range | Default | Meaning |\n|---|---|---|---|");
  for (const lmdbio::ConfigEntry& e : lmdbio::config_table())
    std::printf("| `%s` | %s | %s | %s |\n", e.name, cell(e.range).c_str(),
                *e.def == '\0' ? "not set" : cell(e.def).c_str(), cell(e.meaning).c_str());
  return std::fflush(stdout) == 0 ? 0 : 1;
}
