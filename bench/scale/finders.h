// Where the records of a fetch lie: the ways in which a reader finds that out.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/scale/lmdb_access.h"
#include "bench/scale/storage.h"

namespace lmdbio::bench {

/// Records [first, first + count), in the order of keys, that all ranks together use next.
struct Window {
  std::uint64_t first = 0, count = 0;
  std::uint64_t end() const noexcept { return first + count; }
};

/// Windows follow each other; one that begins at record 0 begins an epoch.  One thread.
class Finder {
 public:
  virtual ~Finder() = default;
  virtual std::uint64_t records() const = 0;
  /// The places of records of the window, sorted.
  virtual std::vector<Place> find(Window window, const std::vector<std::uint64_t>& ordinals) = 0;
  /// It has mapped the file anyway, and can copy values.
  virtual LmdbAccess* lmdb() { return nullptr; }
  /// Windows whose guess was wrong.
  virtual std::uint64_t wrong_guesses() const { return 0; }
};

/// A cursor of LMDB.
std::unique_ptr<Finder> cursor_walk(std::unique_ptr<LmdbAccess> lmdb);
/// Reads leaf pages one after the other, each by a request of its own, in requests that are in flight
/// together.  Before, all branch pages.
std::unique_ptr<Finder> direct_walk(Storage& storage);
/// All branch pages tell the leaf pages.  Takes all leaf pages but the last for as full as the first, reads
/// those of its records, and checks that; the readers tell each other.  Once a guess was wrong, they count
/// all leaf pages, each a part of them.
std::unique_ptr<Finder> guess(Storage& storage, MPI_Comm readers);

}  // namespace lmdbio::bench
