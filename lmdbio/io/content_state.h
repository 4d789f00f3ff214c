// A hash that distinguishes the states of a database file's contents.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "lmdbio/io/file.h"

namespace lmdbio {

/// Returns a 128-bit hash that identifies the contents of the file, or nullopt if the file cannot be read.
/// The hash covers inode, size, times of change and modification, and `more`.  It also covers up to
/// 256 bytes of each half of the first `head_bytes`, which are the two meta pages.  It does not cover the
/// device, whose number differs between the nodes of a cluster.  If two hashes are equal and no writer was
/// active meanwhile, the file has the same bytes.  The hash also changes if another database is copied over
/// the file.  Blocks for three system calls.  The two reads go to storage only for data that is not in the
/// page cache.
std::optional<std::array<std::uint64_t, 2>> content_state(const File& file, std::size_t head_bytes,
                                                          std::uint64_t more) noexcept;

}  // namespace lmdbio
