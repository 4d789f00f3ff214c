// Finds out whether the data around a place of a walk is in memory.
#pragma once

#include <cstdint>

#include "lmdbio/ahead/environment_file.h"
#include "lmdbio/ahead/planner.h"
#include "lmdbio/window/window.h"

namespace lmdbio::ahead {

/// Probes residency for one walk, at intervals.
class ResidencyProbe {
 public:
  explicit ResidencyProbe(EnvironmentFile& env) noexcept : env_(&env) {}
  /// Returns whether the data around `need` seems to be in memory.
  bool in_memory(const PageRun& need, bool forward, std::int64_t now,
                 const window::WindowView& view) noexcept;
  /// Returns the run to grant around `need`, for which in_memory() has returned true.
  FreeRun around(const PageRun& need) const noexcept;
  /// Makes the next call of in_memory() probe.
  void forget() noexcept { wide_ = 0; }

 private:
  EnvironmentFile* env_;
  std::int64_t looked_ns_ = 0;
  std::uint64_t wide_ = 0;  ///< pages granted around a place found in memory
};

}  // namespace lmdbio::ahead
