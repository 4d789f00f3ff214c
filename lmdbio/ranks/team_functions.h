// What liblmdbio_mpi.so calls in liblmdbio.so.  Both come from one build: the version says so.
#pragma once

#include <lmdbio/lmdbio.h>

#include <cstdint>

#include "lmdbio/ranks/network.h"

namespace lmdbio::ranks {

struct TeamOptions {
  unsigned timeout_seconds = 60;
  unsigned readers_per_node = 1;
  bool own_thread = true;
  unsigned stagger_group = 0, stagger_reads = 1;
};

/// None of them throws.  Those that return an int return 0, an errno or an MDB_ code, and set lmdbio_error().
struct TeamFunctions {
  void (*set_error)(const char* text);
  /// LMDBIO_MPI is 1.
  bool (*together)();
  /// Owns the network from now on, also if it fails.
  int (*init)(Network* network, const TeamOptions& options, void** team);
  /// Nodes that its ranks run on.
  unsigned (*nodes)(void* team);
  int (*reader_open)(void* team, const char* path, const lmdbio_reader_options* options,
                     lmdbio_reader** reader);
  int (*wait)(lmdbio_reader* reader);
  int (*poll)(void* team);
  /// Waits for the other ranks; then the network is not used any more.
  int (*close)(void* team);
  /// After close().
  void (*free)(void* team);
};

}  // namespace lmdbio::ranks

extern "C" {
/// Null: this is another version of the library.
const lmdbio::ranks::TeamFunctions* lmdbio_team_functions(const char* version);
}
