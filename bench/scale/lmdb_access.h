// LMDB as the strategies that use it call it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "bench/scale/storage.h"

namespace lmdbio::bench {

/// A read transaction on the main database, and a cursor.  Values are places of the mapped file, which only
/// copy() reads.  One thread.
class LmdbAccess {
 public:
  virtual ~LmdbAccess() = default;
  virtual std::uint64_t records() const = 0;
  /// MDB_FIRST if the record is not behind the one where the cursor is, then MDB_NEXT until it is there.
  virtual Place step_to(std::uint64_t ordinal) = 0;
  /// mdb_get of the key of a record.
  virtual Place get(std::uint64_t ordinal) = 0;
  /// Page faults read what is not there.
  virtual void copy(Place value, std::byte* to) = 0;
};

/// The real one.  `keys`: file of Keys, which get() needs; empty: none.
std::unique_ptr<LmdbAccess> real_lmdb(const std::string& directory, const std::string& keys);

}  // namespace lmdbio::bench
