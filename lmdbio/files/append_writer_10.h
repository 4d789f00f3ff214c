// Appends records to a database in the format of LMDB 1.0, without LMDB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lmdbio/base/unique_fd.h"
#include "lmdbio/format/layout.h"

namespace lmdbio::files {

/// Writes records in the order of their keys, as AppendWriter does.  Pages are written once, in the order of
/// their numbers: values in overflow pages, the leaf page that refers to them, and branch pages that have
/// become full.  Until finish(), the file has no meta pages, so that no program reads it.  One thread.
/// Functions throw Error (database.h) and bad_alloc; what was committed stays.
class AppendWriter10 {
 public:
  /// Makes data.mdb in `directory`, or continues with the file of an object that has ended, also after its
  /// finish().
  explicit AppendWriter10(const std::string& directory);
  AppendWriter10(const AppendWriter10&) = delete;
  AppendWriter10& operator=(const AppendWriter10&) = delete;

  /// Returns the number of records that are committed.
  std::uint64_t committed() const noexcept { return committed_; }
  /// Returns the key of the last committed record; empty if there is none.
  const std::string& last_key() const noexcept { return last_key_; }
  /// Appends a record, and commits if many bytes wait for that.  The key must be greater than the last one.
  void append(std::string_view key, std::string_view value);
  /// Writes the data to the page cache, and the whole leaf pages so far are committed.
  void commit();
  /// Commits everything, writes the meta pages, and waits until the file is on disk.  No record can be
  /// appended afterwards.
  void finish();

 private:
  struct Child {
    std::string key;  ///< the first one below
    std::uint64_t page;
  };
  /// The branch page of one level that is being filled.
  struct Level {
    std::vector<Child> children;
    std::size_t used = 0;  ///< bytes
  };
  /// A node of the leaf page that is being filled.
  struct Node {
    std::string bytes;
    std::size_t key_bytes;
    std::string key() const;
  };

  [[noreturn]] void fail(int error) const;
  [[noreturn]] void fail_contents() const;
  void resume();
  std::uint64_t committed_pages() const;
  void resume_leaf(const std::byte* leaf, std::uint64_t page);
  bool read(std::uint64_t offset, std::span<std::byte> to) const;
  std::byte* new_pages(std::uint64_t count, unsigned flags);
  void flush();
  std::uint64_t write_run(std::string_view value);
  void write_leaf();
  std::uint64_t write_branch(const std::vector<Child>& children, std::size_t count);
  void add_child(std::size_t level, Child child);
  void leaf_is_written(std::uint64_t page, std::uint64_t records, std::string first_key,
                       std::string last_key);
  void write_metas(const format::DbRecord& main);

  const std::string path_;
  const std::size_t page_;  ///< bytes
  UniqueFd fd_;
  std::string buffer_;           ///< whole pages that are not written yet
  std::uint64_t next_page_ = 2;  ///< behind the buffer
  std::uint64_t waiting_ = 0;    ///< bytes since the last commit
  std::uint64_t flushed_ = 0;    ///< bytes of the file for which writing to disk has begun
  std::vector<Node> leaf_;
  std::size_t leaf_used_ = 0;  ///< bytes
  std::vector<Level> levels_;  ///< from the one above the leaf pages
  std::string last_appended_;
  std::uint64_t leaf_pages_ = 0, branch_pages_ = 0, overflow_pages_ = 0;
  // The state behind the last leaf page:
  std::uint64_t whole_pages_ = 2, whole_records_ = 0;
  std::string whole_key_;
  // The last commit:
  std::uint64_t committed_ = 0;
  std::string last_key_;
};

}  // namespace lmdbio::files
