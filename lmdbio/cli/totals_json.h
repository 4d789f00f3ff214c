// Converts the results of a walk to JSON.
#pragma once

#include <lmdb.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "lmdbio/check/check.h"

namespace lmdbio::cli {

using Json = nlohmann::ordered_json;

/// Returns the JSON text of `j`.  Replaces bytes in names that are not valid UTF-8.
inline std::string dump(const Json& j) { return j.dump(2, ' ', false, Json::error_handler_t::replace); }

inline Json pages_json(const check::Totals& t) {
  return {{"meta", t.meta_pages},   {"branch", t.branch_pages},     {"leaf", t.leaf_pages},
          {"leaf2", t.leaf2_pages}, {"overflow", t.overflow_pages}, {"free", t.free_pages},
          {"lost", t.lost_pages}};
}

/// Returns the names of flags, such as "DUPSORT|DUPFIXED", or "-" if there are none.
inline std::string flags_text(unsigned flags) {
  constexpr struct {
    unsigned bit;
    const char* name;
  } kNames[] = {{MDB_REVERSEKEY, "REVERSEKEY"}, {MDB_DUPSORT, "DUPSORT"},
                {MDB_INTEGERKEY, "INTEGERKEY"}, {MDB_DUPFIXED, "DUPFIXED"},
                {MDB_INTEGERDUP, "INTEGERDUP"}, {MDB_REVERSEDUP, "REVERSEDUP"}};
  std::string out;
  for (const auto& n : kNames)
    if ((flags & n.bit) != 0) out += (out.empty() ? "" : "|") + std::string(n.name);
  return out.empty() ? "-" : out;
}

}  // namespace lmdbio::cli
