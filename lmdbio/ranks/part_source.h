// Source of the records that a rank reads for a distributed stream.  A small interface, so that a model of a
// file system can replace the file.
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
  /// Returns record `i` of the requested ones.  Requires done().  Its bytes live as long as bytes().
  /// Returns an error if the record could not be read; `why` is one line that names the file.  May throw
  /// bad_alloc.
  virtual Status record(std::size_t i, lmdbio_record& out, std::string& why) = 0;
  /// Returns the owner of the records' bytes.  Only after record() has succeeded.  It owns nothing else of
  /// the file.
  virtual std::shared_ptr<const void> bytes() const = 0;
  /// Returns whether the bytes are only lent: the caller must copy what record() returns right after
  /// still_lent() was true.  There is no bytes() then.
  virtual bool lends() const noexcept { return false; }
  /// Returns whether the file is still long enough.  Access to lent bytes beyond its end would end the
  /// program.
  virtual bool still_lent() const noexcept { return true; }
};

/// How the records of a read are used.
struct PartUse {
  bool may_lend = false;  ///< see PartRead::lends()
  /// The records are read again in each epoch, and the page cache has room for them.
  bool comes_again = false;
};

/// One thread at a time.  Another thread may end the reads that it has started.
class PartSource {
 public:
  virtual ~PartSource() = default;
  /// Starts to read the records with these ordinals.  Does not wait.  ENOMEM: memory is short now.  May
  /// throw bad_alloc.
  virtual Status start(std::span<const std::uint64_t> ordinals, PartUse use, std::unique_ptr<PartRead>& out,
                       std::string& why) = 0;
  /// Returns whether reads stay in memory, beyond the memory that start() counts, so that reading them again
  /// costs little.
  virtual bool caches() const noexcept { return false; }
  /// If not caches(): returns for which share of all that the readers of this node read in an epoch the page
  /// cache has room, besides `taken` bytes.  0 to 1.
  virtual double room(std::uint64_t taken) const noexcept {
    (void)taken;
    return 0;
  }
};

}  // namespace lmdbio::ranks
