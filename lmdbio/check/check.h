// Checks whether a snapshot is intact.  Walks each page of the snapshot, in time and memory proportional to
// the file.  Any bytes are a valid input.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lmdbio/base/status.h"
#include "lmdbio/tree/snapshot.h"
#include "lmdbio/window/window.h"

namespace lmdbio {
class File;
}

namespace lmdbio::check {

using tree::Snapshot;

enum class Severity : unsigned char {
  error,    ///< LMDB never writes this
  warning,  ///< lost pages, and an order of keys that a program's own comparator could explain
};

struct Finding {
  Severity severity;
  std::uint64_t page;         ///< the page with the wrong bytes, or the first lost page
  std::uint64_t pages;        ///< number of pages from there; 1 except for lost pages
  std::string_view database;  ///< "(free)", "(main)", or the name
  const char* reason;         ///< one line without newline; valid during the call
};

/// The sums of one database, including its trees of duplicates.
struct DatabaseTotals {
  enum class Kind : unsigned char { free, main, named };
  Kind kind;
  std::string_view name;  ///< as Finding::database; any bytes; valid during the call
  std::uint64_t home;     ///< the page that holds its record
  format::DbRecord record;
  std::uint64_t keys = 0, entries = 0;  ///< entries include duplicates
  std::uint64_t branch_pages = 0, leaf_pages = 0, leaf2_pages = 0, overflow_pages = 0;
  std::uint64_t dup_trees = 0, sub_pages = 0;
  std::uint64_t tree_bytes = 0;  ///< bytes in use of branch and leaf pages
  unsigned depth = 0;            ///< of its own tree, as found
};

struct Totals {
  std::uint64_t meta_pages = 2, branch_pages = 0, leaf_pages = 0, leaf2_pages = 0, overflow_pages = 0;
  std::uint64_t free_pages = 0;  ///< listed in the free database
  std::uint64_t lost_pages = 0;  ///< neither used nor listed; means nothing if errors were found
  std::uint64_t entries = 0;     ///< of all databases but the free one, without records of named databases
  std::uint64_t named = 0;
  std::uint64_t errors = 0, warnings = 0;
  unsigned depth = 0;  ///< of the deepest tree
  /// The visitor or Options::cancelled has ended the walk early.  The sums include what was seen until then.
  bool stopped = false;
};

/// The place of a record: a key without duplicates, or one duplicate.  Never a record of the free database.
struct RecordPlace {
  std::size_t key_bytes, value_bytes;
  std::uint64_t offset;  ///< of the value in the file, in bytes
  bool overflow;
};

/// Receives what the walk finds, in the order of the walk.  Its functions may throw, which only ends the
/// walk.
class Visitor {
 public:
  virtual ~Visitor() = default;
  /// Returns false to end the walk.
  virtual bool finding(const Finding& f) = 0;
  /// Called at the end of each database.
  virtual void database(const DatabaseTotals&) {}
  /// Called only if Options::records is set.
  virtual void record(const RecordPlace&) {}
  /// Called now and then with the number of pages seen and the total number of pages.
  virtual void progress(std::uint64_t /*done*/, std::uint64_t /*total*/) {}
};

struct Options {
  bool order = true;     ///< check keys against the default comparators for their databases' flags
  bool records = false;  ///< call Visitor::record
  /// Read the headers of overflow runs.  Otherwise, a run is assumed to have as many pages as its value
  /// needs.  If the record of its database counts more pages, the record is taken as correct.
  bool overflow_headers = true;
  /// The file that the view maps, opened for reads through the page cache.  Pages are read ahead of the
  /// walk, many at once.  Null: page faults read them.
  const File* file = nullptr;
  /// Ends the walk soon after it is set (Totals::stopped).  May be null.
  const std::atomic<bool>* cancelled = nullptr;
};

/// Walks the free database, the main one and all databases named in it, and accounts for every page.
///
/// `file`: a view of all whole pages of the file.  `snapshot`: of a checked meta.  A writer may work on the
/// file meanwhile.  Nothing is read outside the view.  Findings count only if the newest meta is at most
/// one transaction ahead afterwards; until then, no page of the snapshot has been overwritten.  The walk
/// ends in SIGBUS if the file is truncated while it is mapped.
///
/// Returns ENOMEM if there is no memory for two bits per page.  Any thread; different walks are
/// independent.
Status check_snapshot(const window::WindowView& file, const Snapshot& snapshot, const Options& options,
                      Visitor& visitor, Totals& totals);

/// The reason why stock must not make a compacting copy.
struct CopyHazard {
  std::uint64_t page = 0;
  const char* reason = "";  ///< static
};

/// Checks that stock's mdb_env_copy2(MDB_CP_COMPACT) of this snapshot ends, without a signal or an assertion.
/// All data that mdb_env_copyfd1, mdb_env_cwalk and the cursor on the free database dereference must be
/// inside the file.  The stacks and buffers of these functions must suffice, and no page may come twice.
/// Nothing else is checked (keys, counts, values, page numbers): stock copies such files, or returns
/// MDB_INCOMPATIBLE itself.  In one case the check is stricter than stock: it rejects an overflow header with
/// fewer pages than the value needs, although stock would not crash.
///
/// If there is a problem, sets `why` and returns an error: stock's error if stock notices the problem itself,
/// else MDB_CORRUPTED.  Returns ENOMEM if there is no memory for one bit per page.
Status check_compact_copy(const window::WindowView& file, const Snapshot& snapshot, CopyHazard& why) noexcept;

}  // namespace lmdbio::check
