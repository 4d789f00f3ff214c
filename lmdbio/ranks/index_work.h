// A part of the record index that a rank makes, while something else makes it.
#pragma once

#include <cstdint>
#include <string>

#include "lmdbio/base/status.h"
#include "lmdbio/records/record_index.h"

namespace lmdbio::ranks {

/// One thread at a time.  Ending it before it is done waits for reads in flight.
class IndexWork {
 public:
  virtual ~IndexWork() = default;
  /// Never waits.
  virtual bool done() noexcept = 0;
  /// Once done(): the part, which lives as long as this; null: `st` and `why`, one line that names the file,
  /// say what is wrong.  May throw bad_alloc.
  virtual const records::RecordIndex* made(Status& st, std::string& why) = 0;
};

}  // namespace lmdbio::ranks
