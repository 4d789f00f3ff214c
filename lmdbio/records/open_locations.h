// Loads the record index of a source from a file, or builds it.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "lmdbio/records/build_index.h"
#include "lmdbio/records/record_locations.h"
#include "lmdbio/records/source.h"

namespace lmdbio::records {

/// Parameters of open_locations().
struct LocationsRequest {
  std::string database;            ///< name of the database; empty: the main one
  bool index_file = true;          ///< look for an index file
  std::shared_ptr<Memory> memory;  ///< as in IndexRequest
  /// As in IndexRequest.
  bool (*progress)(void* context, std::uint64_t done, std::uint64_t total) noexcept = nullptr;
  void* context = nullptr;
  /// Does not build the index.  If there is no index file, the result is an IndexParts, whose parts the
  /// caller sets later.
  bool deferred = false;
};

/// Returns "name: the record index cannot be built: ...".  `memory` may be null.  May throw bad_alloc.
std::string index_failure(const std::string& name, Status st, const IndexProblem& problem,
                          const Memory* memory);

/// Logs how many leaf pages a tolerant build left out, if any.
void warn_of_damage(const std::string& name, const IndexProblem& problem) noexcept;

/// Opens the record index of `source`.  Sets `loaded` to true if an index file was used.  A thread builds the
/// index (PendingLocations) if many pages must be read and there is no progress callback.  Errors: as
/// build_index(); `why` explains the error.  May throw bad_alloc.
Status open_locations(const Source& source, const LocationsRequest& request,
                      std::unique_ptr<RecordLocations>& out, bool& loaded, std::string& why);

/// Opens the record index of database `i` of several, in the calling thread.  `cancelled` ends the build,
/// unless `request` has a progress callback.  Further error: ESTALE if the database was changed.  May throw
/// bad_alloc.
Status open_locations(Databases& databases, std::size_t i, LocationsRequest request,
                      const std::atomic<bool>& cancelled, std::unique_ptr<RecordLocations>& out,
                      std::string& why);

}  // namespace lmdbio::records
