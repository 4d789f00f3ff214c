// Lists the node tables of this user, and removes those of killed processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "lmdbio/node/layout.h"
#include "lmdbio/node/segment.h"

namespace lmdbio::node {

/// A process that has joined a table.  It wrote these numbers itself, so they may have any value.
struct ListedProcess {
  std::uint32_t pid;  ///< in its own PID namespace
  int life_segment;   ///< the segment that this process alone has attached (node/life.h)
  std::uint64_t brought, found, waits, taken_over;
  std::uint32_t files;   ///< chunk files that it keeps
  WalkNote walk;         ///< share is at most 1000
  std::int64_t walk_ns;  ///< when it was written, CLOCK_MONOTONIC
};

struct ListedTable {
  SegmentFacts segment;
  bool dead;                          ///< no process has it attached: killed processes have left it
  std::uint64_t chunks;               ///< number of chunks that have a word
  std::optional<TableIdentity> file;  ///< nullopt if it is not known yet, or the table is damaged
  std::vector<ListedProcess> processes;
};

/// Lists the tables of this user and their living processes.  Attaches each table for reading while it copies
/// the rows, but joins no table.  If the last process leaves a table meanwhile, it cannot remove the table;
/// this call then removes it.  May throw bad_alloc.
std::vector<ListedTable> list_tables();

/// Removes the tables of this user that killed processes have left.  Returns how many.  May throw bad_alloc.
std::size_t remove_dead_tables();

}  // namespace lmdbio::node
