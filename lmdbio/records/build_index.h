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

/// What build_index() reads, and with which limits.
struct IndexRequest {
  const OpenFile* file = nullptr;
  std::uint64_t file_pages = 0;    ///< whole pages in the file
  std::size_t page_size = 0;       ///< bytes
  format::DbRecord record{};       ///< of the database, in a snapshot that is held
  gather::MakeEngine make_engine;  ///< see gather::make_queue()
  std::uint64_t available = 0;  ///< memory that the page cache could grow by, in bytes: see choose_read_path
  unsigned threads = 0;         ///< upper limit, the caller's thread included; 0: the build decides
  std::uint64_t chunk_pages = 0;  ///< leaf pages that a thread takes at a time; 0: the build decides
  /// Indexes only part `part` (from 0) of `parts` equal parts of the leaf pages, in tree order.  The
  /// ordinals of the part's records count from 0.  Part 0 alone counts the branch pages.
  std::uint64_t part = 0, parts = 1;
  /// Tolerates damaged leaf pages: the index is built, and reads of their records fail.  Damaged branch
  /// pages still fail the build.  Only with parts = 1.
  bool tolerant = false;
  /// Where the memory of the build is counted; null: nowhere.  If memory is short, the build uses fewer
  /// threads and smaller buffers, down to one thread with one buffer of 256 KiB.
  std::shared_ptr<Memory> memory;
  /// Ends waits for memory when it becomes true.  May be null.
  const std::atomic<bool>* cancelled = nullptr;
  /// Called from time to time in the caller's thread, with the number of leaf pages read and their total.
  /// Return false to cancel the build.  May be null.
  bool (*progress)(void* context, std::uint64_t done, std::uint64_t total) noexcept = nullptr;
  void* context = nullptr;
};

/// Why a tree cannot be indexed.
struct IndexProblem {
  std::uint64_t page = 0;
  char reason[160] = "";      ///< one line without a line end; empty: no reason known
  std::uint64_t damaged = 0;  ///< leaf pages that a tolerant build left out; `page` is one of them
};

/// What the build has read, for statistics.
struct IndexReads {
  std::uint64_t requests = 0, bytes = 0;
  unsigned threads = 1;
  bool direct = false;  ///< leaf pages were read with O_DIRECT
};

/// Builds the record index that `request` describes, and sets `out` if it succeeds.  The file may contain
/// any bytes.
///
/// Pages in the page cache are read from there, other pages with O_DIRECT where that works; LMDBIO_IO and
/// LMDBIO_ENGINE override this.  Blocks until the index is built.  Starts threads if there are many pages,
/// and ends them before it returns; if threads cannot be started, the build uses fewer.  Memory: the index
/// itself, 24 bytes per leaf page while the build finds leaf pages, 8 bytes per leaf page while it reads
/// them, and up to 25 MiB per thread.
///
/// With IndexRequest::tolerant, the build succeeds if only leaf pages are damaged; `problem` then names one
/// of them.  Errors: MDB_CORRUPTED if a page is damaged (`problem` says where and why), or if the tree does
/// not have as many entries as its record says (a part: if it has more).  ECANCELED if progress() returned
/// false.  ENOMEM, also when request.memory is exhausted.  The errno of a failed read.
///
/// `taken` is set to the bytes that the index takes from request.memory.  With null, these bytes are given
/// back.
Status build_index(const IndexRequest& request, RecordIndex& out, IndexProblem& problem,
                   IndexReads* reads = nullptr, TakenMemory* taken = nullptr) noexcept;

}  // namespace lmdbio::records
