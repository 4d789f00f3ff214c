// What is made before a run, by stock LMDB: a database to read, checksums of its records, and their keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/scale/contents.h"

namespace lmdbio::bench {

/// Writes a database of about `bytes` in this directory; its number of records is a multiple of `multiple`.
/// One that was not finished has another name.  Shows progress if standard error is a terminal.
void make_database(const std::string& directory, Content content, std::uint64_t bytes,
                   std::uint64_t multiple = 1);

/// Writes checksums of all records to this file, and their keys to another one beside it.
void make_sums(const std::string& database, const std::string& file);
/// They are there, and not older than the database.
bool have_sums(const std::string& database, const std::string& file);
std::vector<std::uint64_t> read_sums(const std::string& file);

/// Keys of all records.
class Keys {
 public:
  /// `file`: that of the sums.
  explicit Keys(const std::string& file);
  std::size_t count() const noexcept { return begins_.size(); }
  std::string_view operator[](std::size_t i) const noexcept;

 private:
  std::string bytes_;
  std::vector<std::uint64_t> begins_;
};

}  // namespace lmdbio::bench
