// Finders: the methods by which a reader finds the places of the records of a fetch.
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

/// The records [first, first + count), in key order, that all ranks together use next.
struct Window {
  std::uint64_t first = 0, count = 0;
  std::uint64_t end() const noexcept { return first + count; }
};

/// Finds records window by window.  A window that begins at record 0 begins an epoch.  One thread.
class Finder {
 public:
  virtual ~Finder() = default;
  virtual std::uint64_t records() const = 0;
  /// Returns the places of these records of the window.  `ordinals` must be sorted.
  virtual std::vector<Place> find(Window window, const std::vector<std::uint64_t>& ordinals) = 0;
  /// Returns the LMDB that the finder uses, which can also copy values; null if it uses none.
  virtual LmdbAccess* lmdb() { return nullptr; }
  /// Returns the number of windows whose guess was wrong.
  virtual std::uint64_t wrong_guesses() const { return 0; }
};

/// Steps over the records with a cursor of LMDB.
std::unique_ptr<Finder> cursor_walk(std::unique_ptr<LmdbAccess> lmdb);
/// Reads all branch pages when it is made, then the leaf pages in key order.  Each page is one request;
/// several are in flight.
std::unique_ptr<Finder> direct_walk(Storage& storage);
/// Finds the leaf pages in the branch pages.  Guesses that all leaf pages but the last have as many records
/// as the first.  Each reader checks this in the leaf pages of its own records, and the readers exchange the
/// result.  After a wrong guess, they count the records of all leaf pages, each reader in a part of them.
std::unique_ptr<Finder> guess(Storage& storage, MPI_Comm readers);

}  // namespace lmdbio::bench
