// Reads the blocks of ordinals of one reader of a scattered order as a whole, in large requests, where what
// is read stays in the page cache: the rounds of an order would ask for each record by itself.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lmdbio/ranks/deal.h"
#include "lmdbio/ranks/part_source.h"

namespace lmdbio::ranks {

/// One thread.  Deal and source outlive it.  Its end waits for reads in flight.
class HomeLoad {
 public:
  /// Of reader `reader` of a scattered deal.
  HomeLoad(const Deal& deal, std::uint32_t reader, PartSource& source) noexcept;

  /// Starts reads, never waits.  `used`: records that rounds of this reader have asked for so far: the load
  /// stays near to what is used, since a program may read a small part of an epoch only.  May throw
  /// bad_alloc.
  void progress(std::uint64_t used);
  /// All blocks were read, or could not be.
  bool done() const noexcept { return next_ == blocks_ && reads_.empty(); }
  bool reads() const noexcept { return !reads_.empty(); }
  /// Of the blocks whose reads were started.
  std::uint64_t records() const noexcept { return records_; }

 private:
  const Deal& deal_;
  const std::uint32_t reader_;
  PartSource& source_;
  const std::uint64_t blocks_;
  std::uint64_t next_ = 0, records_ = 0;  ///< block
  std::vector<std::unique_ptr<PartRead>> reads_;
};

}  // namespace lmdbio::ranks
