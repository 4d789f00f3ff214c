// The interface through which strategies call LMDB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "bench/scale/storage.h"

namespace lmdbio::bench {

/// A read transaction on the main database, and a cursor.  Functions return the places of values in the file;
/// only copy() reads values.  One thread.
class LmdbAccess {
 public:
  virtual ~LmdbAccess() = default;
  virtual std::uint64_t records() const = 0;
  /// Moves the cursor to a record with MDB_NEXT.  Goes to MDB_FIRST before, unless the record is after the
  /// cursor's.
  virtual Place step_to(std::uint64_t ordinal) = 0;
  /// Looks up the key of a record with mdb_get.
  virtual Place get(std::uint64_t ordinal) = 0;
  /// Copies a value from the mapping.  Page faults read data that is not resident.
  virtual void copy(Place value, std::byte* to) = 0;
};

/// Returns an LmdbAccess to the real LMDB.  `keys` is the file of Keys, which get() needs; it may be empty.
std::unique_ptr<LmdbAccess> real_lmdb(const std::string& directory, const std::string& keys);

}  // namespace lmdbio::bench
