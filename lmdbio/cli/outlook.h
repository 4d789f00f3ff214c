// `lmdbio info`: how LMDBIO would read a database, and why.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lmdbio/cli/database.h"
#include "lmdbio/cli/totals_json.h"
#include "lmdbio/io/read_path.h"

namespace lmdbio::cli {

/// How LMDBIO would read data that is not in memory, with the settings and the free memory of now.  It does
/// not look into the cache on local disk, and asks no server.
class Outlook {
 public:
  /// `used_bytes`: of the pages of the snapshot.  Opens the file again, which may drop its page cache on a
  /// user-space file system.
  Outlook(const Database& database, std::uint64_t used_bytes);
  /// Prints a table.  `cached`: share of the file in the page cache, 0 to 1, if it is known.  `value_bytes`:
  /// average size of a value; 0: unknown.
  void show(std::optional<double> cached, double value_bytes) const;
  Json json() const;

 private:
  struct Row {
    Access access;
    ReadDecision decision;
  };
  ReadFacts facts_;
  std::vector<Row> rows_;
};

}  // namespace lmdbio::cli
