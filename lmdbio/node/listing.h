// The node tables of this user, for whoever looks at them from outside; and those that are to go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "lmdbio/node/layout.h"
#include "lmdbio/node/segment.h"

namespace lmdbio::node {

/// A process that has joined a table.  It wrote the numbers itself: they may be anything.
struct ListedProcess {
  std::uint32_t pid;  ///< in its own PID namespace
  int life_segment;   ///< the segment that this process alone has attached (node/life.h)
  std::uint64_t brought, found, waits, taken_over;
  std::uint32_t files;   ///< chunk files that it keeps
  WalkNote walk;         ///< share: 1000 at most
  std::int64_t walk_ns;  ///< when it was written, CLOCK_MONOTONIC
};

struct ListedTable {
  SegmentFacts segment;
  bool dead;                          ///< no process has it attached: killed ones have left it
  std::uint64_t chunks;               ///< for which it has a word
  std::optional<TableIdentity> file;  ///< nullopt: the table does not tell, or is damaged
  std::vector<ListedProcess> processes;
};

/// Lists the tables of this user and the processes that live.  Attaches each table for reading, for as long
/// as it takes to copy the rows; joins none.  If the last process leaves a table meanwhile, and so cannot
/// remove it, this call removes it.  May throw bad_alloc.
std::vector<ListedTable> list_tables();

/// Removes this user's tables that killed processes have left; returns how many.  May throw bad_alloc.
std::size_t remove_dead_tables();

}  // namespace lmdbio::node
