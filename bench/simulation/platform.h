// A machine to simulate, described by a file of JSON (bench/simulation/README.md).
#pragma once

#include <string>

#include "bench/simulation/storage_model.h"

namespace lmdbio::bench {

/// Its member "storage".  Ends the program with a message that names the file if a member is missing, unknown
/// or has no sense.
StorageSettings read_storage_settings(const std::string& file);

}  // namespace lmdbio::bench
