// Databases that stock LMDB writes once, and that later runs reuse.
#pragma once

#include <cstdint>
#include <string>

#include "bench/keys.h"

namespace lmdbio::bench {

struct Dataset {
  std::string name;  // e.g. "200B-image-12500000", also the directory's name
  std::string path;  // the LMDB directory
  KeyKind keys = KeyKind::kImage;
  std::uint64_t value_bytes = 0;
  std::uint64_t records = 0;
  std::uint64_t file_bytes = 0;
};

/// Returns the number of records of this size for a file of about `file_bytes`.
std::uint64_t records_for(std::uint64_t file_bytes, std::uint64_t value_bytes);

/// Returns the database under `dir`.  Generates it if it does not exist, or was not completed.  Shows
/// progress on stderr if that is a terminal.
Dataset make_dataset(const std::string& dir, KeyKind keys, std::uint64_t value_bytes, std::uint64_t records);

/// Reads the whole data file into the page cache.  Returns the part of the file, 0 to 1, that is in the page
/// cache afterwards.
double make_resident(const Dataset& dataset);

}  // namespace lmdbio::bench
