// What tells one state of a database file's contents from another.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "lmdbio/io/file.h"

namespace lmdbio {

/// A hash of 128 bits of device, inode, size, times of change, the first `head_bytes` (the meta pages) and
/// `more`.  Equal: the file has the same bytes where no writer has been in the meantime, even if another
/// database was copied over it.  None: it cannot be read.  Blocks for two system calls; the second reads from
/// storage only what the page cache does not have.
std::optional<std::array<std::uint64_t, 2>> content_state(const File& file, std::size_t head_bytes,
                                                          std::uint64_t more) noexcept;

}  // namespace lmdbio
