// Databases written by stock LMDB, once, and reused.
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

/// How many records of this size make a file of about `file_bytes`.
std::uint64_t records_for(std::uint64_t file_bytes, std::uint64_t value_bytes);

/// The database under `dir`, generated if it is not there (a generation that was cut short is not taken for
/// one). Progress goes to stderr if that is a terminal.
Dataset make_dataset(const std::string& dir, KeyKind keys, std::uint64_t value_bytes, std::uint64_t records);

/// Reads the data file through, so that it is in the page cache; returns the part of it (0..1) that then is
/// there.
double make_resident(const Dataset& dataset);

}  // namespace lmdbio::bench
