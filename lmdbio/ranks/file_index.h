// Builds parts of the record index of a database file.
#pragma once

#include <cstdint>
#include <memory>

#include "lmdbio/ranks/index_work.h"
#include "lmdbio/records/memory.h"
#include "lmdbio/records/source.h"

namespace lmdbio::ranks {

/// Starts to build one part of the index of `source`: number `part` of `parts`.  The snapshot of `source`
/// must be held until the work ends.  Starts a thread.  If that fails, builds the part before it returns. May
/// throw bad_alloc.
std::unique_ptr<IndexWork> start_index(const records::Source& source, std::shared_ptr<records::Memory> memory,
                                       std::uint64_t part, std::uint64_t parts);

}  // namespace lmdbio::ranks
