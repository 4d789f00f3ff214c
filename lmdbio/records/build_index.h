// Makes the record index of a tree: branch pages level by level, then all leaf pages in the order of the
// file, many at once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lmdbio/base/result.h"
#include "lmdbio/format/layout.h"
#include "lmdbio/io/engine_select.h"
#include "lmdbio/io/open_file.h"
#include "lmdbio/records/memory.h"
#include "lmdbio/records/record_index.h"

namespace lmdbio::records {

/// As select_engine, the default.
using MakeEngine = Result<std::unique_ptr<IoEngine>> (*)(const File& file, unsigned depth, EngineKind wanted,
                                                         const char** name) noexcept;

struct IndexRequest {
  const OpenFile* file = nullptr;
  std::uint64_t file_pages = 0;  ///< whole pages that the file has
  std::size_t page_size = 0;     ///< bytes
  format::DbRecord record{};     ///< of the database, in a snapshot that is held
  MakeEngine make_engine = select_engine;
  std::uint64_t available = 0;    ///< memory that the page cache could grow by, bytes: see choose_read_path
  unsigned threads = 0;           ///< at most, the caller's included; 0: as many as pay
  std::uint64_t chunk_pages = 0;  ///< leaf pages that a thread takes at a time; 0: as many as pay
  /// Of the leaf pages, in the order of the tree, only part `part` of `parts` equal ones.  The ordinals of
  /// its records count from 0, and branch pages are counted in part 0 alone.
  std::uint64_t part = 0, parts = 1;
  /// Leaf pages that are damaged, but not branch pages, leave an index in which their records are damaged.
  /// Only with parts = 1.
  bool tolerant = false;
  /// What it takes is counted there; null: nowhere.  Where that is short, fewer threads read in smaller
  /// buffers, down to one thread and one buffer of 256 KiB.
  std::shared_ptr<Memory> memory;
  /// May be null.  Ends waits for memory.
  const std::atomic<bool>* cancelled = nullptr;
  /// May be null.  Called now and then in the caller's thread with the leaf pages read and those known; false
  /// cancels.
  bool (*progress)(void* context, std::uint64_t done, std::uint64_t total) noexcept = nullptr;
  void* context = nullptr;
};

/// Why a tree cannot be indexed.
struct IndexProblem {
  std::uint64_t page = 0;
  char reason[160] = "";      ///< one line without its end; empty: none to tell
  std::uint64_t damaged = 0;  ///< leaf pages that a tolerant build left out; the page above is one of them
};

/// What the build has read, for who wants to know.
struct IndexReads {
  std::uint64_t requests = 0, bytes = 0;
  unsigned threads = 1;
  bool direct = false;  ///< leaf pages were read past the page cache
};

/// `out` is set if the answer is ok.  Any bytes may be in the file.  Reads what is cold directly where that
/// works, what is in the page cache from there (LMDBIO_IO and LMDBIO_ENGINE say otherwise if set).  Blocks;
/// starts threads if there are many pages, and ends them; where no more can be had, fewer do.  Memory: the
/// index, 24 bytes a leaf page while they are found and 8 while they are read, and up to 25 MiB a thread.
///
/// With IndexRequest::tolerant, the answer is ok if only leaf pages are damaged, and `problem` names one of
/// them. MDB_CORRUPTED: `problem` says where and why; also if the tree has not as many entries as its record
/// says (a part: if it has more). ECANCELED: progress() said so.  ENOMEM: also the limit of request.memory.
/// What reads answer, as an errno. `taken`: set to what the index takes of request.memory; null: that is
/// given back.
Status build_index(const IndexRequest& request, RecordIndex& out, IndexProblem& problem,
                   IndexReads* reads = nullptr, TakenMemory* taken = nullptr) noexcept;

}  // namespace lmdbio::records
