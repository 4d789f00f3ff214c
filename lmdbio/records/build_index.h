// Builds the record index of a tree: reads branch pages level by level, then all leaf pages in file order
// with many requests in flight.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lmdbio/base/result.h"
#include "lmdbio/format/layout.h"
#include "lmdbio/gather/queues.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/records/memory.h"
#include "lmdbio/records/record_index.h"

namespace lmdbio::records {

/// The input and the limits of build_index().
struct IndexRequest {
  const OpenFile* file = nullptr;
  std::uint64_t file_pages = 0;  ///< whole pages in the file
  std::size_t page_size = 0;     ///< bytes
  format::Version version = format::Version::v09;
  format::DbRecord record{};       ///< record of the database, in a snapshot that is held
  gather::MakeEngine make_engine;  ///< see gather::make_queue()
  std::uint64_t available = 0;     ///< bytes that the page cache could grow by; see choose_read_path()
  unsigned threads = 0;            ///< upper limit, including the caller's thread; 0: the build decides
  std::uint64_t chunk_pages = 0;   ///< leaf pages that a thread takes at a time; 0: the build decides
  /// Indexes only part `part` (from 0) of `parts` equal parts of the leaf pages, in tree order.  The
  /// ordinals of the part's records count from 0.  Part 0 alone counts the branch pages.
  std::uint64_t part = 0, parts = 1;
  /// Tolerates damaged leaf pages: the build succeeds, and reads of their records fail.  The build still
  /// fails if a branch page is damaged.  Only with parts = 1.
  bool tolerant = false;
  /// Counts the memory of the build; null: this memory is not counted.  If memory is short, the build uses
  /// fewer threads and smaller buffers, down to one thread with one buffer of 256 KiB.
  std::shared_ptr<Memory> memory;
  /// The build stops waiting for memory when this becomes true.  May be null.
  const std::atomic<bool>* cancelled = nullptr;
  /// The build calls this function from time to time in the caller's thread, with the number of leaf pages
  /// read and their total.  The function returns false to cancel the build.  May be null.
  bool (*progress)(void* context, std::uint64_t done, std::uint64_t total) noexcept = nullptr;
  void* context = nullptr;
};

/// The reason why a tree cannot be indexed.
struct IndexProblem {
  std::uint64_t page = 0;
  char reason[160] = "";      ///< one line without a line end; empty if the reason is unknown
  std::uint64_t damaged = 0;  ///< number of leaf pages that a tolerant build left out; `page` is one of them
};

/// Statistics of the reads of a build.
struct IndexReads {
  std::uint64_t requests = 0, bytes = 0;
  unsigned threads = 1;
  bool direct = false;  ///< true if leaf pages were read with O_DIRECT
};

/// Builds the record index that `request` describes, and sets `out` if it succeeds.  The file may contain
/// any bytes.
///
/// Reads resident pages through the page cache, and other pages with O_DIRECT where that works.  LMDBIO_IO
/// and LMDBIO_ENGINE override this choice.  Blocks until the index is built.  Starts threads if there are
/// many pages, and ends them before it returns.  Uses fewer threads if some cannot be started.  Memory: the
/// index itself, 24 bytes per leaf page while the build finds leaf pages, 8 bytes per leaf page while it
/// reads them, and up to 25 MiB per thread.
///
/// With IndexRequest::tolerant, the build succeeds even if leaf pages are damaged, and `problem` names one of
/// these pages.  Errors: MDB_CORRUPTED if a page is damaged; `problem` gives the page and the reason.
/// MDB_CORRUPTED also if the tree does not have as many entries as its record says, or if a part has more
/// entries.  ECANCELED if progress() returned false.  ENOMEM, also if request.memory is exhausted.  Otherwise
/// the errno of a failed read.
///
/// Sets `taken` to the bytes that the index takes from request.memory.  If `taken` is null, the build gives
/// these bytes back.
Status build_index(const IndexRequest& request, RecordIndex& out, IndexProblem& problem,
                   IndexReads* reads = nullptr, TakenMemory* taken = nullptr) noexcept;

}  // namespace lmdbio::records
