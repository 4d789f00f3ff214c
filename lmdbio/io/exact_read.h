// Brings a piece of a file into the page cache, and no more than that piece.
#pragma once

#include <cstdint>

#include "lmdbio/io/file.h"

namespace lmdbio {

/// The pages that hold the bytes [offset, offset + bytes) are in the page cache afterwards, as far as the
/// file has them; each MiB is asked for in one call, so that storage gets few, large requests.  An errno: the
/// read failed.  `file`: File::Kind::exact.  Blocks; allocates nothing; a cancellation point.  Threads may
/// share the File.
Status bring_exactly(const File& file, std::uint64_t offset, std::uint64_t bytes) noexcept;

}  // namespace lmdbio
