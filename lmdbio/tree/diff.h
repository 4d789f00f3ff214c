// Finds the records that differ between two snapshots.
//
// LMDB never changes a page of a committed snapshot: a writer copies each page that it changes.  So while a
// snapshot is held, the pages of its trees keep their contents.  A page number that two trees have in common
// then means equal contents, and so does everything below it.  The comparison reads only the other pages,
// level by level, with many requests at a time.
//
// This needs no assumption about the writer: records that were inserted, replaced and deleted are found, in
// all databases.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "lmdbio/base/bytes.h"
#include "lmdbio/base/status.h"
#include "lmdbio/format/layout.h"
#include "lmdbio/io/file.h"
#include "lmdbio/tree/snapshot.h"
#include "lmdbio/window/window.h"

namespace lmdbio::tree {

/// One of the two snapshots.
struct DiffSide {
  window::WindowView view;  ///< of the pages of the snapshot; not one with a loader
  Snapshot snapshot;
  /// The file that `view` maps, opened for reads through the page cache.  Pages that are not in memory are
  /// read from it, many at a time.  Null: page faults read them.  Must outlive the comparison.
  const File* file = nullptr;
  int programs_fd = -1;  ///< the program's descriptor of a kept file, or -1
};

enum class Change : unsigned char { inserted, replaced, deleted };

/// A record that differs.  All bytes are valid during the call.  They lie in the views, so that values which
/// are not in memory are read only if they are used.
struct ChangedRecord {
  Change change;
  std::string_view database;  ///< empty: the main database
  Bytes key;
  /// The value in the older and in the newer snapshot; empty if the record does not exist there.
  Bytes older, newer;
  /// The entry of the leaf page that has the record in the newer snapshot.  Page 0: the record does not exist
  /// there, or is one value of a key in a database with duplicates.
  std::uint64_t page = 0;
  unsigned index = 0;
};

/// Receives the differences: first those of the main database, then those of the named ones.  Records of one
/// database arrive in the order of its keys.  The functions may throw; the comparison passes the exception
/// on.
class DiffVisitor {
 public:
  virtual ~DiffVisitor() = default;
  /// Returns false to end the comparison.  In a database with duplicates, a record is a key with one value.
  /// It is inserted or deleted there, but never replaced.
  virtual bool record(const ChangedRecord& record) = 0;
  /// Called for a named database that was made or deleted, before its records.  A database that was made
  /// again with other flags is `replaced`: all of its records are first deleted and then inserted.
  virtual void database(std::string_view /*name*/, Change /*change*/) {}
  /// Called for each leaf page of a compared database of the older snapshot that the newer one does not have,
  /// if the older one is held.  Called before the records of the database.
  virtual void dropped_leaf(std::uint64_t /*page*/) {}
  /// Called now and then, with the number of leaf pages of the current tree that were compared and have to be
  /// compared.
  virtual void progress(std::uint64_t /*done*/, std::uint64_t /*total*/) {}
};

struct DiffOptions {
  /// Both snapshots are of the same file, and no page of the older one has been written to since it was
  /// committed.  This holds while a transaction of the older one is open.  Without locks it holds if the
  /// newest commit is at most one ahead of it (overtaken()); the caller must check that afterwards.
  ///
  /// If neither this nor `older_is_copy` is set, all leaf pages are compared.
  bool older_is_held = false;
  /// For files in the format of LMDB 1.0: the older snapshot is in a copy that was made from the newer one's
  /// file, page by page.  Nobody has to hold it there.  A page that has the same number and was written by
  /// the same transaction in both files is the same page.  If the file is no such copy, differences are
  /// missed.
  bool older_is_copy = false;
  /// Compares only one database: its name, empty for the main database.  Null: all databases.
  const std::string_view* only = nullptr;
  /// Ends the comparison soon after it is set.  May be null.
  const std::atomic<bool>* cancelled = nullptr;
};

struct DiffCounters {
  std::uint64_t pages = 0;           ///< branch and leaf pages visited, of both snapshots
  std::uint64_t compared_bytes = 0;  ///< of values, of both snapshots, that had to be compared
};

/// The reason why a comparison failed.
struct DiffProblem {
  bool newer = false;  ///< the page belongs to the newer snapshot
  std::uint64_t page = 0;
  char reason[160] = "";  ///< one line
};

/// Compares two snapshots.  Calls `visitor` for each difference.
///
/// Keys must be in the default order for the flags of their database: the order of a program's own comparison
/// function is unknown.  The order is checked on all leaf pages that are read, so the result is right for any
/// database for which this function returns success.
///
/// If the flags of the main database differ, both snapshots must have its keys in the order that the older
/// one's flags give.  (Stock LMDB adds flags to a main database that has records, and leaves them in place.)
///
/// Memory: about 20 bytes for each child of each branch page that differs.  If `older_is_held` is false, this
/// means all leaf pages of both trees.  The views may contain any bytes.
/// One thread; independent comparisons may run at the same time.
///
/// Errors: ECANCELED: cancelled, or the visitor has ended the comparison.  MDB_CORRUPTED: a page is damaged.
/// MDB_INCOMPATIBLE: keys are not in the default order, or only one of the snapshots has duplicates in its
/// main database.  `problem` then has the page and the reason.
/// MDB_NOTFOUND: neither snapshot has the database `only`.  ENOTSUP: the snapshots have different page sizes
/// or formats although `older_is_held` or `older_is_copy`, or `older_is_copy` and another format than that of
/// LMDB 1.0.  Throws bad_alloc.
Status diff_snapshots(const DiffSide& older, const DiffSide& newer, const DiffOptions& options,
                      DiffVisitor& visitor, DiffCounters& counters, DiffProblem& problem);

/// Finds the record of a named database, or of the main database if `name` is empty.  It reads one path of
/// the main database.  If the keys on it are not in the default order, it reads all of the main database,
/// since a program may have set its own order.  `counters` may be null; of `options`, only `cancelled` is
/// used.  Errors as diff_snapshots(), with MDB_NOTFOUND if there is none; problem.newer is not meaningful.
Status find_database(const DiffSide& side, std::string_view name, format::DbRecord& record,
                     DiffProblem& problem, const DiffOptions& options = {}, DiffCounters* counters = nullptr);

/// Finds the records behind a given one in the order of the database's keys, and calls visitor.record() for
/// each, as inserted.  For databases to which records are only appended: it reads only the end of the tree.
/// If a writer also inserted, replaced or deleted records before this one, these changes are not found.
/// Keys must be in the default order.  This is checked only on the pages that are read: on the branch pages
/// of the path to `key`, and on the leaf pages.
///
/// `record`: of the database, in `side`'s snapshot.  `key`: the last record that is known; `value`: its value
/// in a database with duplicates, else not used.  `key` need not exist any more.  `name` is only passed on.
/// Errors as diff_snapshots().
Status find_appended(const DiffSide& side, const format::DbRecord& record, std::string_view name, Bytes key,
                     Bytes value, const DiffOptions& options, DiffVisitor& visitor, DiffCounters& counters,
                     DiffProblem& problem);

}  // namespace lmdbio::tree
