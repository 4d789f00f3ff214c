// Reads all owner blocks of a reader of a scattered order in large requests.  Only for sources that read
// through the page cache.  Without this, the rounds of the order would request each record separately.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lmdbio/ranks/assignment.h"
#include "lmdbio/ranks/part_source.h"

namespace lmdbio::ranks {

/// Loads the owner blocks of one reader.  One thread.  Assignment and source must outlive it.  The destructor
/// waits for reads in flight.
class OwnerLoad {
 public:
  /// Prepares to load the blocks of reader `reader`.  The assignment must be scattered.
  OwnerLoad(const Assignment& assignment, std::uint32_t reader, PartSource& source) noexcept;

  /// Starts reads.  Never waits.  `used`: number of records that the rounds of this reader have requested so
  /// far.  A multiple of this number limits the load, because a program may read only a small part of an
  /// epoch.  May throw bad_alloc.
  void progress(std::uint64_t used);
  /// Returns whether the reads of all blocks have ended, with or without an error.
  bool done() const noexcept { return next_ == blocks_ && reads_.empty(); }
  bool reads() const noexcept { return !reads_.empty(); }
  /// Returns the number of records in the blocks whose reads were started.
  std::uint64_t records() const noexcept { return records_; }

 private:
  const Assignment& assignment_;
  const std::uint32_t reader_;
  PartSource& source_;
  const std::uint64_t blocks_;
  std::uint64_t next_ = 0, records_ = 0;  ///< next block to read; see records()
  std::vector<std::unique_ptr<PartRead>> reads_;
};

}  // namespace lmdbio::ranks
