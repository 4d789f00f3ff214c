// The record index of a source: made, or found in a file.
#pragma once

#include <memory>
#include <string>

#include "lmdbio/records/build_index.h"
#include "lmdbio/records/places.h"
#include "lmdbio/records/source.h"

namespace lmdbio::records {

struct PlacesRequest {
  std::string database;            ///< its name; empty: the main one
  bool index_file = true;          ///< an index file is looked for
  std::shared_ptr<Memory> memory;  ///< as of IndexRequest
  /// As of IndexRequest.
  bool (*progress)(void* context, std::uint64_t done, std::uint64_t total) noexcept = nullptr;
  void* context = nullptr;
  /// The index is not made: where no file has it, the places are IndexParts, for others to fill in.
  bool deferred = false;
};

/// "name: the record index cannot be built: ..."  `memory` may be null.  May throw bad_alloc.
std::string index_failure(const std::string& name, Status st, const IndexProblem& problem,
                          const Memory* memory);

/// Logs the leaf pages that a tolerant build left out, if there are any.
void warn_of_damage(const std::string& name, const IndexProblem& problem) noexcept;

/// `loaded`: it was found in a file.  Where many pages have to be read, and nobody
/// watches the progress, a thread makes the index: PendingPlaces.  Errors as of build_index; `why` then says
/// what was wrong.  May throw bad_alloc.
Status open_places(const Source& source, const PlacesRequest& request, std::unique_ptr<Places>& out,
                   bool& loaded, std::string& why);

}  // namespace lmdbio::records
