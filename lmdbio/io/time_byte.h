// Measures how long a read takes, for systems on which no call tells what is in the page cache.
#pragma once

#include <cstdint>
#include <optional>

#include "lmdbio/io/file.h"

namespace lmdbio {

/// Reads the byte at `offset` and returns how long this took, in nanoseconds, or nullopt if it cannot be
/// read.  The time is much shorter if the byte is in the page cache.  `file`: open for buffered reads.
/// Blocks.
std::optional<std::int64_t> time_byte(const File& file, std::uint64_t offset) noexcept;

}  // namespace lmdbio
