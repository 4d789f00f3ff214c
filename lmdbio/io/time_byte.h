// The time that a read takes, where nothing else tells what is in memory.
#pragma once

#include <cstdint>
#include <optional>

#include "lmdbio/io/file.h"

namespace lmdbio {

/// Reads the byte at `offset`: how long that took, nanoseconds; none if it cannot be read.  Much less where
/// the page cache has it than elsewhere.  `file`: for reads through the page cache.  Blocks.
std::optional<std::int64_t> time_byte(const File& file, std::uint64_t offset) noexcept;

}  // namespace lmdbio
