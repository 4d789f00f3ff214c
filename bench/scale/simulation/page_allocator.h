// Computes which pages stock LMDB allocates when it writes.  Follows mdb_page_alloc and mdb_freelist_save of
// LMDB 0.9.24, but has no pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <vector>

namespace lmdbio::bench {

/// Stock LMDB would do something that the model does not support.
class NotModelled : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Models one write transaction after the other, without readers.  The database of free pages has at most one
/// page.  Throws NotModelled if it would need more.
class PageAllocator {
 public:
  using Page = std::uint64_t;
  static constexpr Page kNone = ~Page{0};

  explicit PageAllocator(std::size_t page_bytes) noexcept : page_bytes_(page_bytes) {}

  void begin() { ++transaction_; }
  /// Allocates `pages` adjacent pages, and returns the first one.
  Page allocate(std::uint64_t pages);
  /// Frees a page of an earlier transaction that this transaction has replaced.
  void free(Page page) { freed_.push_back(page); }
  void commit();

  std::uint64_t transaction() const noexcept { return transaction_; }
  /// Returns the number of pages of the file.
  Page pages() const noexcept { return next_; }
  /// Returns the only page of the database of free pages, or kNone.
  Page root() const noexcept { return root_; }
  std::uint64_t entries() const noexcept { return records_.size(); }

 private:
  void touch_root();
  void put(std::uint64_t key, std::size_t count);
  void delete_first();
  void fill_reserved();

  const std::size_t page_bytes_;
  std::uint64_t transaction_ = 0;
  Page next_ = 2;
  std::map<std::uint64_t, std::vector<Page>> records_;  ///< free pages by transaction, descending
  Page root_ = kNone;
  bool root_is_new_ = false;  ///< root_ was allocated by this transaction
  // State of the current transaction.
  std::vector<Page> freed_;
  std::vector<Page> head_;  ///< pages of records that were read, descending
  bool has_head_ = false;
  std::uint64_t last_read_ = 0;  ///< record; 0: none
};

}  // namespace lmdbio::bench
