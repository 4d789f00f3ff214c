// Interface to the source of the records that a rank reads for a distributed stream.  The interface is small,
// so that a model of a file system can replace the file.
#pragma once

#include <lmdbio/lmdbio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "lmdbio/base/status.h"

namespace lmdbio::ranks {

/// A read of several records in one batch of requests.  The destructor waits for reads in flight.
class PartRead {
 public:
  virtual ~PartRead() = default;
  /// Advances the reads, and returns whether all have ended.  Never waits.
  virtual bool done() noexcept = 0;
  virtual void wait() noexcept = 0;
  /// Sets `out` to the requested record number `i`.  Requires done().  The record is valid as long as the
  /// object that bytes() returns.  If the record could not be read, returns an error and sets `why` to one
  /// line that names the file.  May throw bad_alloc.
  virtual Status record(std::size_t i, lmdbio_record& out, std::string& why) = 0;
  /// Returns the owner of the records' bytes.  Requires that record() has succeeded.
  virtual std::shared_ptr<const void> bytes() const = 0;
  /// Returns whether the bytes are only lent.  If so, bytes() must not be used.  The caller must check
  /// still_lent(), call record(), and copy the record at once.
  virtual bool lends() const noexcept { return false; }
  /// Returns whether the file is still long enough for the lent bytes.  Access to bytes beyond its end would
  /// end the program.
  virtual bool still_lent() const noexcept { return true; }
};

/// Says how the records of a read are used.
struct PartUse {
  bool may_lend = false;  ///< see PartRead::lends()
  /// True if the records are read again in each epoch and the page cache has room for them.
  bool comes_again = false;
};

/// Starts reads of records.  One thread at a time.  Another thread may destroy the reads.
class PartSource {
 public:
  virtual ~PartSource() = default;
  /// Starts to read the records with these ordinals.  Does not wait.  ENOMEM: memory is short at present.
  /// May throw bad_alloc.
  virtual Status start(std::span<const std::uint64_t> ordinals, PartUse use, std::unique_ptr<PartRead>& out,
                       std::string& why) = 0;
  /// Returns whether the page cache keeps what was read, so that reading it again costs little.
  virtual bool caches() const noexcept { return false; }
  /// Returns how much of the data that the readers of this node read in an epoch fits into the page cache,
  /// besides `taken` bytes.  The result is a share from 0 to 1.  Only if caches() is false.
  virtual double room(std::uint64_t taken) const noexcept {
    (void)taken;
    return 0;
  }
};

}  // namespace lmdbio::ranks
