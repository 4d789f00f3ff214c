// Several databases that one reader reads as one.  Their files form a joined file (io/file_set.h), whose
// pages have one sequence of numbers.  The files are read without locks.  So each user of their pages checks,
// after it has read them, that no transaction was committed in the meantime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lmdbio/format/compare.h"
#include "lmdbio/format/layout.h"
#include "lmdbio/io/file_set.h"

namespace lmdbio::records {

/// One of several databases.
struct Database {
  std::string name;  ///< used in messages
  std::uint64_t txnid = 0;
  std::uint64_t pages = 0;       ///< pages of the snapshot in the file
  std::uint64_t first_page = 0;  ///< number of page 0 in the joined file
  format::DbRecord db{};
  format::Comparator key_order{}, dup_order{};
};

/// The databases, and their files in the same sequence.  Any thread that shares the program's descriptor
/// table.
struct Databases {
  Databases(std::vector<Database> databases, std::vector<FileSet::Part> parts, format::PageFormat like,
            bool direct);

  /// Returns the number of the database that has this page of the joined file.
  std::size_t of_page(std::uint64_t page) const noexcept { return files.at(page * pages.size); }
  /// Returns true if the newest transaction of database `i` is that of its snapshot.
  bool unchanged(std::size_t i) noexcept;
  /// Says what has changed in database `i`, in one line that names it.  May throw bad_alloc.
  std::string changes(std::size_t i);

  const format::PageFormat pages;
  FileSet files;
  std::vector<Database> all;

 private:
  Status last_transaction(std::size_t i, std::uint64_t& txnid) noexcept;
};

/// Returns the offset of the transaction id in a meta page.
constexpr std::size_t at_txnid(format::Version version) noexcept {
  return format::page_header(version) + offsetof(format::MetaRecord, txnid);
}

}  // namespace lmdbio::records
