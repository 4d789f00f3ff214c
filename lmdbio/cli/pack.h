// `lmdbio info --pack`: how well a database can be compressed, and which recipe a cache would use.
#pragma once

#include <cstdint>
#include <vector>

#include "lmdbio/cache/recipe_choice.h"
#include "lmdbio/cli/database.h"
#include "lmdbio/cli/totals_json.h"

namespace lmdbio::cli {

/// Reads in MB/s (10^6 bytes).  0: not given.
struct PackRates {
  double cache = 0;  ///< of the local disk
  double file = 0;   ///< of the original file
};

/// Tries recipes on a sample of a database, and chooses one for each of some conditions.
class PackReport {
 public:
  /// Reads 32 samples of 64 KiB, and takes about 0.3 s of processor time.  Throws Failure and bad_alloc.
  PackReport(const Database& database, const PackRates& rates);
  void show() const;
  Json json() const;

 private:
  struct Choice {
    cache::Conditions conditions;
    std::size_t trial;
    double speed_up;  ///< of an epoch, over no cache
  };

  cache::Trials trials_;
  std::uint64_t sampled_ = 0;  ///< bytes
  bool cache_given_, file_given_;
  double cache_rate_, file_rate_;  ///< bytes/s
  unsigned idle_cores_;
  std::vector<Choice> choices_;  ///< for each size of the cache: with and without prefetching
};

}  // namespace lmdbio::cli
