// Work that builds a part of the record index, in a thread or otherwise.
#pragma once

#include <cstdint>
#include <string>

#include "lmdbio/base/status.h"
#include "lmdbio/records/record_index.h"

namespace lmdbio::ranks {

/// Builds one part of the index.  One thread at a time.  The destructor waits for reads in flight.
class IndexWork {
 public:
  virtual ~IndexWork() = default;
  /// Never waits.
  virtual bool done() noexcept = 0;
  /// Returns the part, which lives as long as this object.  Requires done().  Returns null on failure; `st`
  /// and `why`, one line that names the file, then describe the error.  May throw bad_alloc.
  virtual const records::RecordIndex* made(Status& st, std::string& why) = 0;
};

}  // namespace lmdbio::ranks
