// Functions of liblmdbio.so that liblmdbio_mpi.so calls.  Both libraries must come from the same build;
// lmdbio_team_functions() checks their version.
#pragma once

#include <lmdbio/follow.h>

#include <cstdint>

#include "lmdbio/ranks/network.h"

namespace lmdbio::ranks {

struct TeamOptions {
  unsigned timeout_seconds = 60;
  unsigned readers_per_node = 1;
  bool own_thread = true;
  unsigned stagger_group = 0, stagger_reads = 1;
};

/// No function throws.  Functions that return int return 0, an errno or an MDB_ code, and set
/// lmdbio_error().
struct TeamFunctions {
  void (*set_error)(const char* text);
  /// Returns whether LMDBIO_MPI is 1.
  bool (*together)();
  /// Makes a team.  Takes ownership of the network, even if it fails.
  int (*init)(Network* network, const TeamOptions& options, void** team);
  /// Returns the number of nodes that the ranks run on.
  unsigned (*nodes)(void* team);
  int (*reader_open)(void* team, const char* path, const lmdbio_reader_options* options,
                     lmdbio_reader** reader);
  int (*follow_open)(void* team, const char* path, const lmdbio_follow_options* options,
                     lmdbio_follow** follow);
  int (*wait)(lmdbio_reader* reader);
  int (*poll)(void* team);
  /// Waits for the other ranks.  Afterwards, the network is no longer used.
  int (*close)(void* team);
  /// Requires close().
  void (*free)(void* team);
};

}  // namespace lmdbio::ranks

extern "C" {
/// Returns null if the library has another version.
const lmdbio::ranks::TeamFunctions* lmdbio_team_functions(const char* version);
}
