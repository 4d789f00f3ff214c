// Databases in the format of LMDB 1.0, without an LMDB that writes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/lmdb_api.h"

namespace lmdbio::test {

/// Returns a data file in the format of LMDB 1.0 with the records of all databases of the environment in
/// `dir`, which `lmdb`, a stock LMDB 0.9, can read.  Pages have `page_size` bytes, or more if keys would not
/// fit.  `seed` decides how full pages are, and which duplicates are in sub-pages.  Throws
/// std::runtime_error.
std::vector<std::byte> in_format_10(const LmdbApi& lmdb, const std::string& dir, std::size_t page_size,
                                    std::uint64_t seed);

}  // namespace lmdbio::test
