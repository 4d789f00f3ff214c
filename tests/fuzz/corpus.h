// What the programs that write the corpora share.
#pragma once

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "tests/support/dbgen.h"

namespace lmdbio::test {

inline DbSpec spec(DbKind kind, unsigned flags, unsigned keys, unsigned key_min, unsigned key_max,
                   unsigned value_min, unsigned value_max, unsigned dups = 1, std::string name = "") {
  DbSpec s;
  s.name = std::move(name);
  s.kind = kind;
  s.flags = flags;
  s.keys = keys;
  s.key_min = key_min;
  s.key_max = key_max;
  s.value_min = value_min;
  s.value_max = value_max;
  s.dups = dups;
  return s;
}

inline void save(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  std::printf("%7zu %s\n", bytes.size(), path.filename().c_str());
}

}  // namespace lmdbio::test
