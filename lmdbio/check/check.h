// Is a snapshot whole?  Walks every page of it, on any bytes, in time and memory proportional to the file.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lmdbio/base/status.h"
#include "lmdbio/cache/window.h"
#include "lmdbio/db/snapshot.h"

namespace lmdbio {
class File;
}

namespace lmdbio::check {

using db::Snapshot;

enum class Severity : unsigned char {
  error,    ///< LMDB never writes this
  warning,  ///< lost pages, and orders that a comparator of the program's own would explain
};

struct Finding {
  Severity severity;
  std::uint64_t page;         ///< the page whose bytes are wrong, or the first that is lost
  std::uint64_t pages;        ///< how many from there; 1 but for lost pages
  std::string_view database;  ///< "(free)", "(main)", or the name
  const char* reason;         ///< one line without its end; valid during the call
};

/// What was found in one database, the trees of its duplicates included.
struct DatabaseTotals {
  enum class Kind : unsigned char { free, main, named };
  Kind kind;
  std::string_view name;  ///< as Finding::database; any bytes; valid during the call
  std::uint64_t home;     ///< the page that holds its record
  format::DbRecord record;
  std::uint64_t keys = 0, entries = 0;  ///< entries: duplicates counted
  std::uint64_t branch_pages = 0, leaf_pages = 0, leaf2_pages = 0, overflow_pages = 0;
  std::uint64_t dup_trees = 0, sub_pages = 0;
  std::uint64_t tree_bytes = 0;  ///< of branch and leaf pages, those in use
  unsigned depth = 0;            ///< of its own tree, as found
};

struct Totals {
  std::uint64_t meta_pages = 2, branch_pages = 0, leaf_pages = 0, leaf2_pages = 0, overflow_pages = 0;
  std::uint64_t free_pages = 0;  ///< listed in the free database
  std::uint64_t lost_pages = 0;  ///< neither used nor listed; means nothing where errors were found
  std::uint64_t entries = 0;     ///< of all databases but the free one; the records of named ones not counted
  std::uint64_t named = 0;
  std::uint64_t errors = 0, warnings = 0;
  unsigned depth = 0;    ///< of the deepest tree
  bool stopped = false;  ///< the visitor ended the walk, or Options::cancelled did: sums are of what was seen
};

/// A record of a database other than the free one and of a key without duplicates, or one duplicate.
struct RecordPlace {
  std::size_t key_bytes, value_bytes;
  std::uint64_t offset;  ///< of the value in the file, bytes
  bool overflow;
};

/// Told what is found, in the order of the walk.  May throw: nothing is lost but the walk.
class Visitor {
 public:
  virtual ~Visitor() = default;
  /// False ends the walk.
  virtual bool finding(const Finding& f) = 0;
  /// At the end of each database.
  virtual void database(const DatabaseTotals&) {}
  /// With Options::records only.
  virtual void record(const RecordPlace&) {}
  /// Now and then.  Pages seen, pages that there are.
  virtual void progress(std::uint64_t /*done*/, std::uint64_t /*total*/) {}
};

struct Options {
  bool order = true;     ///< keys by the default comparators of their databases' flags
  bool records = false;  ///< call Visitor::record
  /// Look at the headers of overflow runs.  Else a run has as many pages as its value needs, and the record
  /// of its database is believed where it counts more.
  bool overflow_headers = true;
  /// What the view maps, opened for reads through the page cache: pages are read ahead of the walk, many at
  /// once. Null: they come by page faults.
  const File* file = nullptr;
  /// May be null.  Ends the walk soon after it is set: Totals::stopped.
  const std::atomic<bool>* cancelled = nullptr;
};

/// Walks the free database, the main one and all that are named in it, and accounts for every page.
///
/// `file`: a view of all pages that the file has, whole ones.  `snapshot`: of a checked meta.  A writer may
/// work on the file meanwhile: nothing is read outside the view, and findings count only if the newest meta
/// is at most one transaction ahead afterwards (until then no page of the snapshot has been written over).  A
/// file that is truncated while it is mapped is SIGBUS.
///
/// ENOMEM: no memory for two bits a page.  Any thread; different walks are independent.
Status check_snapshot(const cache::WindowView& file, const Snapshot& snapshot, const Options& options,
                      Visitor& visitor, Totals& totals);

/// Why stock must not be asked for a compacting copy.
struct CopyHazard {
  std::uint64_t page = 0;
  const char* reason = "";  ///< static
};

/// Whether stock's mdb_env_copy2(MDB_CP_COMPACT) of this snapshot ends, and without a signal or an assertion:
/// what mdb_env_copyfd1, mdb_env_cwalk and the cursor on the free database dereference is inside the file,
/// their stacks and buffers suffice, no page comes twice.  Nothing else is proved (keys, counts, values, page
/// numbers): stock copies such files, or answers MDB_INCOMPATIBLE itself.  One exception, which stock would
/// survive: an overflow header that says fewer pages than its value needs.
///
/// Not ok: what stock answers where it notices itself, else MDB_CORRUPTED; `why` is then set.  ENOMEM: no
/// memory for one bit a page.
Status check_compact_copy(const cache::WindowView& file, const Snapshot& snapshot, CopyHazard& why) noexcept;

}  // namespace lmdbio::check
