// Views of tree pages and sub-pages that check data when it is used.
//
// A view checks the header of the page once, when it is made, and each slot when it is used.  Checking all
// slots at once (some 200 loads) would cost more than a lookup.
#pragma once

#include "lmdbio/base/bytes.h"
#include "lmdbio/format/layout.h"

namespace lmdbio::format {

/// A node whose header, key and in-page data are inside its page.  It is valid as long as the page's bytes.
struct Node {
  const std::byte* at = nullptr;

  unsigned flags() const noexcept { return load<std::uint16_t>(at + 4); }
  unsigned key_size() const noexcept { return load<std::uint16_t>(at + 6); }
  const std::byte* key() const noexcept { return at + kNodeHeader; }
  /// In a leaf: returns the size of the value in bytes.  With kBigData, the value is in overflow pages.
  std::uint32_t data_size() const noexcept { return load<std::uint32_t>(at); }
  const std::byte* data() const noexcept { return at + kNodeHeader + key_size(); }
  /// In a branch page: returns the number of the page below.
  Pgno child() const noexcept {
    return Pgno{load<std::uint32_t>(at) | (std::uint64_t{load<std::uint16_t>(at + 4)} << 32)};
  }
  /// In a leaf, with kBigData: returns the number of the first page of the overflow run.
  Pgno overflow() const noexcept { return load<Pgno>(data()); }
};

/// A page of a tree, or a sub-page inside a node.  Non-owning, trivially copyable.
class PageView {
 public:
  PageView() noexcept {}  // NOLINT: not initialized before open()
  /// Returns a view without a page: bytes() is null.
  static PageView none() noexcept {
    PageView v;
    v.page_ = nullptr;
    v.size_ = 0;
    v.count_ = v.flags_ = 0;
    return v;
  }

  /// Opens a page of the file.  `page` has `size` bytes.  Returns false if the page is corrupted, for example
  /// if its number is not `expect`.  Every page, also with kLeaf2, must have one of the flags kBranch and
  /// kLeaf.
  static bool open(const std::byte* page, std::size_t size, Pgno expect, PageView& out) noexcept {
    if (load<Pgno>(page) != expect) [[unlikely]]
      return false;
    return out.adopt(page, size);
  }
  /// Opens a sub-page, which is `size` bytes of a node's data.  Ignores its page number.  Returns false if
  /// the sub-page is corrupted.
  static bool open_sub(const std::byte* page, std::size_t size, PageView& out) noexcept {
    if (size < kPageHeader) [[unlikely]]
      return false;
    return out.adopt(page, size) && (out.flags_ & kLeaf) != 0;
  }

  bool is_branch() const noexcept { return (flags_ & kBranch) != 0; }
  bool is_leaf() const noexcept { return (flags_ & kLeaf) != 0; }
  bool is_leaf2() const noexcept { return (flags_ & kLeaf2) != 0; }
  unsigned count() const noexcept { return count_; }
  const std::byte* bytes() const noexcept { return page_; }
  std::size_t size() const noexcept { return size_; }
  /// Returns the item size in the header of a kLeaf2 page, in bytes.
  unsigned item_size() const noexcept { return load<std::uint16_t>(page_ + kAtPad); }

  /// Finds the node of slot `i`, which is less than count(), on a page without kLeaf2.  Returns false if the
  /// page is corrupted.
  bool node(unsigned i, Node& out) const noexcept {
    const std::size_t off = load<std::uint16_t>(page_ + kPageHeader + 2 * i);
    if (off < kPageHeader + 2 * count_ || off + kNodeHeader > size_) [[unlikely]]
      return false;
    out.at = page_ + off;
    std::size_t end = off + kNodeHeader + out.key_size();
    if (is_leaf()) end += (out.flags() & kBigData) != 0 ? sizeof(Pgno) : out.data_size();
    return end <= size_;
  }
  /// Does the same for a leaf, in hot paths.  Loads the node's header at once, and also returns its fields.
  bool leaf_node(unsigned i, Node& out, unsigned& flags, std::size_t& key_size,
                 std::size_t& data_size) const noexcept {
    const std::size_t off = load<std::uint16_t>(page_ + kPageHeader + 2 * i);
    if (off < kPageHeader + 2 * count_ || off + kNodeHeader > size_) [[unlikely]]
      return false;
    out.at = page_ + off;
    const auto header = load<std::uint64_t>(out.at);
    data_size = static_cast<std::uint32_t>(header);
    flags = static_cast<std::uint16_t>(header >> 32);
    key_size = static_cast<std::uint16_t>(header >> 48);
    return off + kNodeHeader + key_size + ((flags & kBigData) != 0 ? sizeof(Pgno) : data_size) <= size_;
  }
  /// Returns item `i`, which is less than count(), of a kLeaf2 page with items of `item_bytes` bytes.
  /// Returns nullptr if the page is corrupted.
  const std::byte* item(unsigned i, std::size_t item_bytes) const noexcept {
    if (kPageHeader + (i + std::size_t{1}) * item_bytes > size_) [[unlikely]]
      return nullptr;
    return page_ + kPageHeader + i * item_bytes;
  }

 private:
  bool adopt(const std::byte* page, std::size_t size) noexcept {
    page_ = page;
    size_ = static_cast<std::uint32_t>(size);
    flags_ = load<std::uint16_t>(page + kAtFlags);
    const std::size_t lower = load<std::uint16_t>(page + kAtLower),
                      upper = load<std::uint16_t>(page + kAtUpper);
    count_ = static_cast<std::uint16_t>((lower - kPageHeader) / 2);
    if (lower < kPageHeader) [[unlikely]]
      return false;
    // On a kLeaf2 page, the items follow the header, there is no slot table, and `lower` only counts the
    // items.  On a valid sub-page of 1-byte items, `lower` and `upper` are beyond its end.  item() checks the
    // bounds.
    if ((flags_ & kLeaf2) != 0) return (flags_ & (kLeaf | kBranch)) == kLeaf;
    if (lower > upper || upper > size) [[unlikely]]
      return false;
    return ((flags_ & kBranch) != 0) != ((flags_ & kLeaf) != 0);
  }

  // The members are not initialized, since a cursor has many views and uses few of them.
  const std::byte* page_;
  std::uint32_t size_;
  std::uint16_t count_;
  std::uint16_t flags_;
};

}  // namespace lmdbio::format
