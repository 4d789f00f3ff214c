// Brings a piece of a file into the page cache, and no more than that piece.
#pragma once

#include <cstdint>
#include <optional>

#include "lmdbio/io/file.h"

namespace lmdbio {

/// The pages that hold the bytes [offset, offset + bytes) are in the page cache afterwards, as far as the
/// file has them; each MiB is asked for in one call, so that storage gets few, large requests.  An errno: the
/// read failed.  `file`: File::Kind::exact.  Blocks; allocates nothing; a cancellation point.  Threads may
/// share the File.
Status bring_exactly(const File& file, std::uint64_t offset, std::uint64_t bytes) noexcept;

/// Reads the byte at `offset`: how long that took, nanoseconds; none if it cannot be read.  Much less where
/// the page cache has it than elsewhere.  `file`: for reads through the page cache.  Blocks.
std::optional<std::int64_t> time_byte(const File& file, std::uint64_t offset) noexcept;

}  // namespace lmdbio
