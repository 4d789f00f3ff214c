// Interface of work that builds a part of the record index, for example in a thread.
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
  /// Returns the part, which is valid as long as this object exists.  Requires done().  If the build has
  /// failed, returns null and sets `st` and `why`.  `why` is one line that names the file.  May throw
  /// bad_alloc.
  virtual const records::RecordIndex* made(Status& st, std::string& why) = 0;
};

}  // namespace lmdbio::ranks
