// Where a rank reads records, as the distributed stream asks for it: three calls, so that a model of a file
// system can take the file's place.
#pragma once

#include <lmdbio/lmdbio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "lmdbio/base/status.h"

namespace lmdbio::ranks {

/// Records that are being read together.  Ending it before it is done waits for the reads in flight.
class PartRead {
 public:
  virtual ~PartRead() = default;
  /// Never waits, and moves the reads on.
  virtual bool done() noexcept = 0;
  virtual void wait() noexcept = 0;
  /// Once done(): record `i` of those that were asked for, its bytes valid as long as bytes().  An error,
  /// with `why` in one line that names the file: the record could not be read.  May throw bad_alloc.
  virtual Status record(std::size_t i, lmdbio_record& out, std::string& why) = 0;
  /// Once there is a record: what has the records' bytes, and nothing else of the file.
  virtual std::shared_ptr<const void> bytes() const = 0;
  /// What record() gives is to be copied right after still_lent() has said that it can be, and there is no
  /// bytes().
  virtual bool lends() const noexcept { return false; }
  /// The file has not become shorter, which would end the program.
  virtual bool still_lent() const noexcept { return true; }
};

struct PartUse {
  bool may_lend = false;  ///< see PartRead::lends()
  /// They are read again in each epoch, and the page cache has room for them.
  bool comes_again = false;
};

/// One thread at a time; what it started may be ended by another one.
class PartSource {
 public:
  virtual ~PartSource() = default;
  /// Starts to read the records with these ordinals.  Does not wait.  ENOMEM: there is no room for them now.
  /// May throw bad_alloc.
  virtual Status start(std::span<const std::uint64_t> ordinals, PartUse use, std::unique_ptr<PartRead>& out,
                       std::string& why) = 0;
  /// What was read stays in memory, beside what start() counts: reading it again costs little.
  virtual bool caches() const noexcept { return false; }
  /// Else, of all that readers of this node read in an epoch, the share for which the page cache has room
  /// beside `taken` bytes: 0 to 1.
  virtual double room(std::uint64_t taken) const noexcept {
    (void)taken;
    return 0;
  }
};

}  // namespace lmdbio::ranks
