// The database that stock LMDB writes if a program puts records in the order of their keys.  There is no
// file: each page is made on request.
//
// The pages follow mdb_put, mdb_page_split and mdb_txn_commit of LMDB 0.9.24, and the file format of
// docs/format.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "bench/scale/simulation/page_allocator.h"

namespace lmdbio::bench {

/// Records that need not exist.  Each function depends on the ordinal alone.  Any thread.
class Records {
 public:
  static constexpr std::size_t kKeyRoom = 511;  ///< bytes of the longest key

  virtual ~Records() = default;
  virtual std::uint64_t count() const = 0;
  /// Writes the key to `to`, and returns its length, 1 to kKeyRoom.  Keys are in ascending order.
  virtual std::size_t key(std::uint64_t ordinal, char* to) const = 0;
  virtual std::uint64_t value_bytes(std::uint64_t ordinal) const = 0;
  /// Returns whether all keys have the same length, and all values as well.
  virtual bool uniform() const { return false; }
  /// Writes the bytes of a value that lies in a leaf page.
  virtual void value(std::uint64_t ordinal, std::byte* to) const = 0;
};

/// Immutable.  Any thread.
class SyntheticTree {
 public:
  using Page = PageAllocator::Page;

  struct Writing {
    std::size_t page_bytes = 4096;
    std::uint64_t commit_interval = 0;  ///< records of a transaction; 0: one transaction has all
    bool append = false;                ///< MDB_APPEND
    std::uint64_t map_bytes = 0;        ///< the argument of mdb_env_set_mapsize
    unsigned environment_flags = 0;     ///< of mdb_env_open: LMDB stores the low 16 bits
  };
  /// `records` must outlive the tree.  The tree takes memory for each leaf page, and for each gap between
  /// values.  Throws NotModelled, std::invalid_argument, std::bad_alloc.
  SyntheticTree(const Records& records, Writing writing);

  std::size_t page_bytes() const noexcept { return writing_.page_bytes; }
  /// Return the size of the file.
  Page pages() const noexcept { return allocator_.pages(); }
  std::uint64_t bytes() const noexcept { return pages() * page_bytes(); }

  enum class Kind : unsigned char { meta, branch, leaf, value, free };
  /// Returns what a page contains.  `free` includes the page of the database of free pages, whose content
  /// make() does not write.
  Kind kind(Page page) const;
  /// Writes the content of one page, page_bytes() long.  Bytes that LMDB leaves undefined are zero.  So are
  /// values in overflow pages, and free pages.
  void make(Page page, std::span<std::byte> to) const;

  /// Writes the meta, branch and leaf pages among the bytes [offset, offset + to.size()) of the file.  Leaves
  /// other pages of `to` unchanged.  Both the offset and the size must be multiples of the page size.
  void make_tree_pages(std::uint64_t offset, std::span<std::byte> to) const;

  Page root() const noexcept { return levels_.back().back().page; }
  /// Returns the number of levels; 1 if the root is a leaf page.
  std::size_t depth() const noexcept { return levels_.size(); }
  std::uint64_t leaf_pages() const noexcept { return levels_.front().size(); }
  std::uint64_t branch_pages() const noexcept;
  /// Returns the number of overflow pages.
  std::uint64_t value_pages() const noexcept { return value_pages_; }
  /// Returns the leaf page of a record, as an index into the leaf pages in key order.
  std::uint64_t leaf_of(std::uint64_t ordinal) const;
  /// Returns the branch pages from the root down to the leaf page.  Empty if the leaf page is the root.
  std::vector<Page> branch_pages_above(std::uint64_t leaf_index) const;
  Page leaf_page(std::uint64_t index) const { return levels_.front()[index].page; }
  /// Returns the first record of the leaf page with that index.
  std::uint64_t first_record(std::uint64_t index) const { return levels_.front()[index].first; }
  /// Returns the number of overflow pages of the value; 0 if it lies in the leaf page.
  std::uint64_t value_pages(std::uint64_t ordinal) const;
  /// Returns the first overflow page of the value.
  Page value_page(std::uint64_t ordinal) const;

 private:
  /// A branch or leaf page, with its first child or record.
  struct Node {
    Page page;
    std::uint64_t first;
  };
  /// The last page of a level, to which LMDB adds nodes.
  struct Open {
    std::size_t used = 0;        ///< bytes of nodes
    std::size_t last_bytes = 0;  ///< of the last node
    std::uint64_t count = 0;
    bool is_new = false;  ///< allocated by this transaction
  };
  struct Run {
    std::uint64_t first;  ///< record
    Page page;
  };
  /// The space that a record takes in the file.
  struct Lie {
    std::uint64_t value_pages;
    std::size_t node_bytes;  ///< in the leaf page, with its pointer
  };
  struct Database {
    std::uint64_t branch_pages = 0, leaf_pages = 0, value_pages = 0, entries = 0, depth = 0;
    Page root = PageAllocator::kNone;
  };
  struct Meta {
    Database free, main;
    Page last_page = 1;
    std::uint64_t transaction = 0;
  };

  static std::uint64_t index_of(const std::vector<Node>& level, std::uint64_t below);
  void put(std::uint64_t ordinal);
  void add_value(std::uint64_t ordinal);
  void touch();
  void add_node(std::size_t level, std::size_t bytes);
  void new_page(std::size_t level, std::uint64_t first);
  void split(std::size_t level, std::size_t bytes);
  void add_child(std::size_t level);
  void commit();
  void sort_pages();

  std::size_t largest_node() const noexcept;
  std::size_t key_bytes(std::uint64_t ordinal) const;
  Lie lie(std::uint64_t ordinal) const;
  std::size_t leaf_node_bytes(std::uint64_t ordinal) const;
  std::uint64_t first_record_below(std::size_t level, std::uint64_t index) const;
  void make_meta(Page page, std::span<std::byte> to) const;
  void make_tree_page(std::size_t level, std::uint64_t index, std::span<std::byte> to) const;
  void make_value_page(Page page, std::span<std::byte> to) const;
  /// Returns false if the page holds no part of a value.
  bool find_value(Page page, std::uint64_t& ordinal, Page& first) const;

  const Records& records_;
  const Writing writing_;
  std::optional<Lie> uniform_;  ///< if all records have the same size
  PageAllocator allocator_;
  std::vector<std::vector<Node>> levels_;   ///< leaf pages first; pages in key order
  std::vector<Open> open_;                  ///< of each level
  std::vector<Run> runs_;                   ///< runs of adjacent overflow pages, by record
  std::uint64_t put_ = 0;                   ///< records so far
  std::uint64_t value_pages_ = 0;           ///< overflow pages of their values
  Page next_value_ = PageAllocator::kNone;  ///< the page after the last value
  Meta metas_[2];

  struct Known {
    Page page;
    std::uint32_t level;
    std::uint64_t index;
  };
  std::vector<Known> by_page_;  ///< branch and leaf pages
  std::vector<std::uint32_t> runs_by_page_;
};

}  // namespace lmdbio::bench
