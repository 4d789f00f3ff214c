// Makes files for a run with stock LMDB: a database, and the checksums and keys of its records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/scale/contents.h"

namespace lmdbio::bench {

/// Writes a database of about `bytes` in this directory; its number of records is a multiple of `multiple`.
/// Until it is complete, it has another name.  Shows progress if standard error is a terminal.
void make_database(const std::string& directory, Content content, std::uint64_t bytes,
                   std::uint64_t multiple = 1);

/// Writes the checksums of all records to `file`, and their keys to a second file beside it.
void make_sums(const std::string& database, const std::string& file);
/// Returns whether `file` exists and is not older than the database.
bool have_sums(const std::string& database, const std::string& file);
std::vector<std::uint64_t> read_sums(const std::string& file);

/// Keys of all records.
class Keys {
 public:
  /// Reads the keys that make_sums() wrote beside `file`.
  explicit Keys(const std::string& file);
  std::size_t count() const noexcept { return begins_.size(); }
  std::string_view operator[](std::size_t i) const noexcept;

 private:
  std::string bytes_;
  std::vector<std::uint64_t> begins_;
};

}  // namespace lmdbio::bench
