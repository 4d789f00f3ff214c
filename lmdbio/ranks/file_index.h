// Parts of the record index of a database file.
#pragma once

#include <cstdint>
#include <memory>

#include "lmdbio/ranks/index_work.h"
#include "lmdbio/records/memory.h"
#include "lmdbio/records/source.h"

namespace lmdbio::ranks {

/// Part `part` of `parts` of the index of `source`, whose snapshot is held until this ends.  Starts a thread;
/// without one it is made before this returns.  May throw bad_alloc.
std::unique_ptr<IndexWork> start_index(const records::Source& source, std::shared_ptr<records::Memory> memory,
                                       std::uint64_t part, std::uint64_t parts);

}  // namespace lmdbio::ranks
