// Deliberately wrong implementations: the harness must find each of them.
#pragma once

#include "tests/support/lmdb_api.h"

namespace lmdbio::diff {

inline constexpr int kSabotages = 12;
const char* sabotage_name(int which) noexcept;

/// Makes one thing of `api` wrong.
void sabotage(int which, test::LmdbApi* api);

}  // namespace lmdbio::diff
